"""What a run came to, when it ends: time, tokens, losses, goodput, checkpoint; and what to do with
it, by commands that work for this run from this folder."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from headway.cli.output import goodput_text, say, short_count, short_loss, short_time
from headway.errors import HeadwayError
from headway.spec.resolve import Resolved
from headway.state.checkpoints import newest_saved, steps_saved
from headway.state.find_run import find_run
from headway.state.goodput import goodput
from headway.state.rewinds import Record, apply_rewinds
from headway.state.run_directory import MODEL, OUTPUT, RunDirectory
from headway.state.status import newest_event


def show_summary(directory: RunDirectory, is_script: bool = False) -> None:
    for key, value in (_script_summary if is_script else _summary)(directory):
        say(f"{key:<11} {value}")


def _summary(directory: RunDirectory) -> Iterator[tuple[str, str]]:
    here = directory.here()
    taken = here.metrics.read()[0]
    steps = apply_rewinds(taken)
    if not steps:
        return
    good = goodput(here.history(), taken)
    tokens, num_steps = steps[-1]["tokens"], steps[-1]["step"]
    if good is not None:
        # The steps before a fork were taken by another run.
        own = tokens * (num_steps - steps[0]["step"] + 1) / num_steps
        speed = f", {short_count(own / good.total_seconds)} a second" if tokens else ""
        yield "time", short_time(good.total_seconds)
        yield "tokens", f"{short_count(tokens)}{speed}"
    yield "loss", _last_and_best(steps)
    by_set: dict[str, list[Record]] = {}
    for record in apply_rewinds(here.evaluations.read()[0]):
        by_set.setdefault(record["set"], []).append(record)
    for name, records in by_set.items():
        yield name, _last_and_best(records)
    if good is not None:
        yield "goodput", goodput_text(good)
    if (newest := newest_checkpoint(directory)) is not None:
        yield "checkpoint", newest


def _script_summary(directory: RunDirectory) -> Iterator[tuple[str, str]]:
    here = directory.here()
    taken = here.metrics.read()[0]
    if steps := apply_rewinds(taken):
        yield "step", str(steps[-1]["step"])
    if (good := goodput(here.history(), taken)) is not None:
        yield "time", short_time(good.total_seconds)
        yield "goodput", goodput_text(good)
    yield "output", directory.store.location(OUTPUT)


def saved_so_far(resolved: Resolved, directory: RunDirectory) -> str:
    if resolved.is_script:
        newest = newest_event(directory.here().history(), "launched", "stopped") or {}
        how = f" {newest['ended']}; it" if newest.get("ended") else ""
        return f"the script{how} starts again with what it has saved"
    saved = steps_saved(directory)
    return f"saved up to step {saved[-1]}" if saved else "no checkpoint yet"


def _last_and_best(records: list[Record]) -> str:
    """`records`: of one set, in order, with step and loss."""
    last = records[-1]
    finite = [record for record in records if record["loss"] is not None]
    best = min(finite, key=lambda record: float(record["loss"]), default=last)
    said = short_loss(last["loss"])
    if best is last:
        return f"{said} at step {last['step']}, the best"
    return f"{said}; best {short_loss(best['loss'])} at step {best['step']}"


def newest_checkpoint(directory: RunDirectory) -> str | None:
    found = newest_saved(directory)
    return None if found is None else directory.store.location(found.folder)


def next_commands(resolved: Resolved, directory: RunDirectory) -> Iterator[str]:
    """What can be done with a finished run, from the current folder."""
    name = shlex.quote(as_typed_from(directory, Path.cwd()))
    if resolved.is_script:
        yield f"headway report {name}"
        return
    if resolved.run.objective.type != "masked":
        yield f'headway generate {name} --prompt "Once"'
    if directory.store.names(MODEL):  # otherwise it is a module of the user's own
        yield f"headway export {name}"
    yield f"headway report {name}"


def as_typed_from(directory: RunDirectory, folder: Path) -> str:
    """How commands name the run in this folder: by its name if it is found by that."""
    if not directory.store.is_local:
        return directory.location
    try:
        if find_run(directory.name, folder).location == directory.location:
            return directory.name
    except HeadwayError:
        pass  # there is another run file, or none of that name
    return os.path.relpath(directory.location, folder)
