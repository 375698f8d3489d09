"""Preparing a set while somebody watches: the moving line, and what there is to say at the end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.output import hint, say, short_count, short_time, warn
from headway.cli.progress import MovingLine
from headway.clock import SystemClock
from headway.data.making.finish import PROBLEMS, read_problems
from headway.data.making.prepare import Job, PartDone, prepare
from headway.data.shards import SetManifest
from headway.state.store import Store

if TYPE_CHECKING:
    from headway.data.making.report import Progress

SHOWN_PROBLEMS = 3


def prepare_showing(job: Job, name: str) -> SetManifest | PartDone:
    line = MovingLine()
    try:
        made = prepare(job, lambda progress: line.show(_words(name, progress)), SystemClock())
    finally:
        line.close()
    if isinstance(made, PartDone):
        say(f"prepared a part of {name}: {short_count(made.num_tokens)} tokens, in {job.into}")
    else:
        say(
            f"prepared {name}: {short_count(made.num_documents)} documents, "
            f"{short_count(made.num_tokens)} tokens, in {_near(job.into)}"
        )
        tell_what_is_left_out(made, job.into)
    return made


def tell_what_is_left_out(manifest: SetManifest, into: str) -> None:
    statistics = manifest.statistics
    assert statistics is not None
    for count, what in (
        (statistics.num_duplicates, "duplicates left out"),
        (statistics.num_dropped, "records left out by the transform"),
        (statistics.num_blank, "records of white space only"),
    ):
        if count:
            say(f"{count} {what}")
    if statistics.num_problems:
        kinds = ", ".join(f"{count} {kind}" for kind, count in statistics.problems.items())
        warn(f"{statistics.num_problems} could not be read and are left out: {kinds}")
        for problem in read_problems(Store(into))[:SHOWN_PROBLEMS]:
            say(f"  {problem.where}: {problem.kind}: {problem.message}")
        hint(f"all of them are in {_near(into)}/{PROBLEMS}")


def _words(name: str, progress: Progress) -> str:
    what = "training the tokenizer for" if progress.stage == "tokenizer" else "preparing"
    speed = progress.bytes / 1e6 / max(progress.seconds, 1e-3)
    share = left = ""
    if progress.share is not None:
        share = f" {progress.share:4.0%}"
        done = progress.share - progress.share_before
        if done > 0:
            left = f"  {short_time(progress.seconds * (1 - progress.share) / done)} left"
    tokens = f"  {short_count(progress.tokens)} tokens" if progress.stage == "tokens" else ""
    bad = f"  {progress.problems} unreadable" if progress.problems else ""
    return (
        f"{what} {name}:{share}  {short_count(progress.documents)} documents  "
        f"{speed:.1f} MB/s{tokens}{left}{bad}"
    )


def _near(location: str) -> str:
    if "://" in location:
        return location
    path = Path(location).resolve()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
