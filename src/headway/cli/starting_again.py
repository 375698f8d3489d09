"""A run that is there already, started again: which settings may differ from those it has."""

from __future__ import annotations

import shlex

from headway.cli.output import say
from headway.errors import BadInput
from headway.plan.length import num_steps
from headway.spec.changes import changed_identity
from headway.spec.resolve import Resolved
from headway.spec.run import RunFile
from headway.spec.units import Length
from headway.state.checkpoints import steps_saved
from headway.state.rundir import RunDirectory


def require_same_run(directory: RunDirectory, run: RunFile, extend: bool) -> None:
    """A name stands for one run: what decides its weights may not change under it, as long as any
    of them are saved. With `extend` it may become longer."""
    before, saved = directory.read_spec(), steps_saved(directory)
    changed = changed_identity(before.run, run)
    others = [change for change in changed if not change.startswith("train_for:")]
    listed = "\n  ".join(changed)
    if changed and not saved:
        if not directory.is_running():  # else the start is refused for that
            say(
                f"nothing of run {directory.name} is saved: starting it again with other settings:"
                f"\n  {listed}"
            )
    elif others:
        raise BadInput(
            f"run {directory.name} was started with other settings:\n  {listed}",
            "restore the old settings, or start a new run"
            + (
                f": --set name={directory.free_name()}"
                if directory.store.is_served
                else f" from this one (--set changes its settings): {_fork(directory)}"
            ),
        )
    elif changed and extend:
        _require_longer(directory, before, run.train_for, saved)
    elif changed:
        is_shorter = _is_shorter(directory, before, run.train_for)
        resume = f"to resume with {before.run.train_for}: headway resume {directory.as_typed}"
        raise BadInput(
            f"run {directory.name} was started with another length:\n  {listed}",
            resume if is_shorter else "--extend makes a run longer",
        )


def _require_longer(
    directory: RunDirectory, before: Resolved, length: Length, saved: list[int]
) -> None:
    if _is_shorter(directory, before, length):
        steps = _steps(directory, before, length)
        early = [step for step in saved if steps is None or step < steps]
        raise BadInput(
            f"run {directory.name} was started with train_for: {before.run.train_for}, and "
            f"{length} is shorter",
            f"a new run of that length: {_new_run(directory, early, length)}",
        )


def _is_shorter(directory: RunDirectory, before: Resolved, length: Length) -> bool:
    old, new = (_steps(directory, before, one) for one in (before.run.train_for, length))
    if old is not None and new is not None:
        return new < old
    return length.unit == before.run.train_for.unit and length.amount < before.run.train_for.amount


def _steps(directory: RunDirectory, before: Resolved, length: Length) -> int | None:
    """None for epochs while nobody has noted how long one is: in a fork before its first start."""
    started = [event for event in directory.history() if event["event"] == "started"]
    samples = started[-1]["samples"] if started else None
    if length.unit == "epochs" and samples is None:
        return None
    batch, sequence_length = before.global_batch, before.run.data.sequence_length
    return num_steps(length.unit, length.amount, batch, sequence_length, samples)


def _new_run(directory: RunDirectory, early: list[int], length: Length) -> str:
    """A command for another run of that length: from the newest of the steps, if there is any."""
    setting = f"--set {shlex.quote(f'train_for={length}')}"
    if not early or directory.store.is_served:  # a run in a claim cannot be forked from here
        return f"headway run --set name={directory.free_name()} {setting}"
    return f"{_fork(directory, early[-1])} {setting}"


def _fork(directory: RunDirectory, step: int | None = None) -> str:
    at = "" if step is None else f"@{step}"
    return f"headway fork {directory.as_typed}{at} {directory.free_name()}"
