"""Preparing a set: with its progress shown, or in the background while a run trains on what is
ready."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from headway.cli.output import hint, say, short_count, short_time, warn
from headway.cli.progress import MovingLine
from headway.clock import SystemClock
from headway.data.prepare.damage import damage_to
from headway.data.prepare.encoder_pool import end_with_parent
from headway.data.prepare.job import PrepareJob, prepare
from headway.data.prepare.manifest import PROBLEMS, read_problems
from headway.data.prepare.recipe import RECIPE, read_recipe
from headway.data.reading.growing_set import GrowingSet
from headway.data.reading.mixture import MixtureSet
from headway.data.reading.token_set import TokenSet
from headway.data.set_format import SetManifest
from headway.errors import HeadwayError, RunFailed
from headway.state.set_files import FAILED
from headway.state.store import Store

if TYPE_CHECKING:
    from headway.data.prepare.progress import PrepareProgress
    from headway.data.reading.sample_set import SampleSet

SHOWN_PROBLEMS = 3
POLITENESS = 10
"""Niceness of a preparation in the background: training, which people wait for, has priority."""
SHOW_SECONDS = 0.5
END_SECONDS = 10.0


def prepare_with_progress(job: PrepareJob, name: str) -> SetManifest:
    line = MovingLine()
    try:
        made = prepare(
            job, lambda progress: line.show(progress_text(name, progress)), SystemClock()
        )
    finally:
        line.close()
    say(
        f"prepared {name}: {short_count(made.num_documents)} documents, "
        f"{short_count(made.num_tokens)} tokens, in {_near(job.into)}"
    )
    report_left_out(made, Store(job.into))
    return made


def report_left_out(manifest: SetManifest, into: Store) -> None:
    statistics = manifest.statistics
    for count, one, rest in (
        (statistics.num_duplicates, "duplicate", ""),
        (statistics.num_dropped, "record", " that the transform dropped"),
        (statistics.num_blank, "blank record", ""),
    ):
        if count:
            say(f"left out {count} {one}{'' if count == 1 else 's'}{rest}")
    if statistics.num_problems:
        kinds = ", ".join(f"{count} {kind}" for kind, count in statistics.problems.items())
        warn(f"left out what could not be read: {kinds}")
        problems, recipe = read_problems(into), read_recipe(into)
        if recipe is not None and (damage := damage_to(recipe, problems)):
            warn(str(damage))
        for problem in problems[:SHOWN_PROBLEMS]:
            say(f"  {problem.where}: {problem.kind}: {problem.message}")
        hint(f"all of them are listed in {_near(into.root)}/{PROBLEMS}")


class BackgroundPreparation:
    """Another process that prepares a set. It ends with this one, and the next start resumes it."""

    def __init__(self, job: PrepareJob) -> None:
        self.job = replace(job, settings=job.settings.model_copy(update={"in_sequence": True}))
        self._store = Store(job.into)
        self._store.remove(FAILED)
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_prepare_in_background, args=(self.job,))
        self._process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the preparation without waiting for it. What is complete is kept."""
        self._process.terminate()
        self._process.join(END_SECONDS)

    def wait_until_begun(self, name: str) -> None:
        """Waits for the tokenizer: other sets may need it."""
        with closing(MovingLine()) as line:
            while self._store.size(RECIPE) is None:
                self._raise_if_failed()
                line.show(f"preparing {name}: reading the list of sources")
                time.sleep(SHOW_SECONDS)

    def _raise_if_failed(self) -> None:
        if self._store.size(FAILED) is not None:
            raise RunFailed(f"preparing failed: {self._store.read(FAILED).decode()}")
        if not self._process.is_alive() and self._process.exitcode:
            raise RunFailed(f"preparing ended with exit code {self._process.exitcode}")


def wait_for_first_samples(samples: SampleSet, sequence_length: int) -> None:
    """Waits if the set is still being prepared. Says so if samples follow the order of the sources,
    because that is a property of the run."""
    if not samples.in_sequence:
        return
    with closing(MovingLine()) as line:

        def show(growing: GrowingSet) -> None:
            line.show(
                f"waiting for the first {short_count(growing.section_tokens)} tokens: "
                f"{short_count(growing.num_tokens)} are prepared"
            )

        samples.wait_for(1, sequence_length, show)
    members = {"": samples}
    if isinstance(samples, MixtureSet):
        named = zip(samples.manifest.members, samples.sets, strict=True)
        members = {f" of {member.name}": one for member, one in named}
    for of, one in members.items():
        if isinstance(one, GrowingSet | TokenSet) and one.in_sequence:
            say(
                f"training starts{_progress(one)}: samples{of} follow the order of the sources, "
                f"shuffled within windows of {short_count(one.section_tokens)} tokens"
            )


def _progress(samples: GrowingSet | TokenSet) -> str:
    """How far the preparation is."""
    done, units = samples.progress if isinstance(samples, GrowingSet) else (0, 0)
    return "" if done == units else f" while the data is being prepared ({done} of {units} done)"


def _prepare_in_background(job: PrepareJob) -> None:
    """The main function of the other process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the parent decides
    os.nice(POLITENESS)
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        prepare(job, lambda _: None, SystemClock())
    except HeadwayError as error:
        Store(job.into).write(FAILED, str(error).encode())
        raise SystemExit(int(error.exit_code)) from None


def progress_text(name: str, progress: PrepareProgress) -> str:
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
