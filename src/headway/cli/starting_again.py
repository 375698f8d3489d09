"""A run that is there already, started again: which settings may differ from those it has."""

from __future__ import annotations

import shlex

from headway.cli.output import say, warn
from headway.errors import BadInput
from headway.plan.length import num_steps
from headway.spec.changes import changed_identity
from headway.spec.resolve import Resolved
from headway.spec.run import RunFile
from headway.spec.units import Length
from headway.state.checkpoints import steps_saved
from headway.state.rundir import RunDirectory
from headway.train.schedule import decay_start, lr_ratio

SMALLEST_JUMP = 1e-3
"""Of the learning rate over its peak, for which it is worth a warning."""


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
        _require_extendable(directory, before, run.train_for, saved)
    elif changed:
        is_shorter = _is_shorter(directory, before, run.train_for)
        resume = f"to resume with {before.run.train_for}: headway resume {directory.as_typed}"
        raise BadInput(
            f"run {directory.name} was started with another length:\n  {listed}",
            resume if is_shorter else "--extend makes a run longer",
        )


def _require_extendable(
    directory: RunDirectory, before: Resolved, length: Length, saved: list[int]
) -> None:
    """Longer than before, and not by a jump up from the end of a decay, which undoes it."""
    old, new = (_steps(directory, before, one) for one in (before.run.train_for, length))
    if _is_shorter(directory, before, length):
        early = [step for step in saved if new is None or step < new]
        raise BadInput(
            f"run {directory.name} was started with train_for: {before.run.train_for}, and "
            f"{length} is shorter",
            f"start a new run of that length: {_new_run(directory, early, length)}",
        )
    if old is None or new is None:
        return
    schedule, step = before.run.schedule, saved[-1]
    last, following = lr_ratio(schedule, max(step - 1, 0), old), lr_ratio(schedule, step, new)
    jump = f"{last:.3g} to {following:.3g} of its peak"
    begin = decay_start(schedule, old)
    if schedule.type == "wsd" and step > begin:
        early = [one for one in saved if one <= begin]
        raise BadInput(
            f"the learning rate decays since step {begin}, and run {directory.name} is at step "
            f"{step}: made longer, it would jump from {jump}",
            ("start a new run from before the decay: " if early else "start a new run: ")
            + _new_run(directory, early, length),
        )
    is_warming_up = step < schedule.warmup.steps(old)
    if abs(following - last) >= SMALLEST_JUMP and not is_warming_up:
        warn(
            f"from step {step} on the learning rate is that of a {schedule.type} schedule of {new} "
            f"steps: it goes from {jump}"
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
