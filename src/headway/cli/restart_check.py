"""Starting a run that exists: which settings may differ, and is there anything left to train?"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.cli.output import hint, say, warn
from headway.clock import SystemClock
from headway.errors import BadInput
from headway.plan.train_length import num_steps
from headway.spec.load import changed_run
from headway.spec.quantities import Length
from headway.spec.resolve import Resolved
from headway.spec.run_file import RunFile
from headway.spec.run_identity import changed_identity, changed_values
from headway.state.checkpoints import steps_saved
from headway.state.run_directory import RunDirectory
from headway.state.status import read_status
from headway.train.lr_schedule import decay_start, lr_ratio

SMALLEST_JUMP = 1e-3
"""Smallest jump of the learning rate, as a share of its peak, that is worth a warning."""


def is_left_to_train(
    location: str,
    run: RunFile,
    extend: bool,
    on: str | None = None,
    digest: Callable[[], str | None] = lambda: None,
) -> bool:
    """False, and says so, if the run at `location` has finished. Raises if it is another run.
    `digest`: the `script_digest` of now."""
    if run.command is not None and extend:
        raise BadInput(
            "--extend makes train_for longer, and a script decides itself when it is done",
            "run it without --extend",
        )
    if not RunDirectory.exists(location) or not RunDirectory.open(location).has_spec():
        return True
    directory = RunDirectory.open(location)
    require_same_run(directory, run, extend, on)
    has_finished = read_status(directory, SystemClock().now()).state == "finished"
    if run.command is not None:
        before = directory.read_spec()
        if before.run.command != run.command:
            old, new = _line(before.run.command), _line(run.command)
            say(f"command changed since the last start: {old} -> {new}")
        elif has_finished and digest() in (None, before.script_digest):
            _say_finished(directory, on)
            hint(
                "edit the script or its command, and it starts again with what it has saved; "
                "--set name=NEW starts a new run"
            )
            return False
        if has_finished:
            say(f"run {directory.name} had finished, and starts again")
        return True
    if extend or not has_finished:
        return True
    _say_finished(directory, on)
    hint("--extend with a longer train_for continues it; --set name=NEW starts a new run")
    return False


def _say_finished(directory: RunDirectory, on: str | None) -> None:
    where = f": {directory.location}" if on is None else f" on {on}"
    say(f"run {directory.name} has already finished{where}")


def _line(command: Sequence[str] | None) -> str:
    return shlex.join(command or ())


def require_same_run(
    directory: RunDirectory, run: RunFile, extend: bool, on: str | None = None
) -> None:
    """A name stands for one run: what decides its weights may not change under it, as long as any
    of them are saved. With `extend` it may become longer. `on` is the target, None for here: a run
    there cannot be forked or resumed by its location, so hints are flags for the same command."""
    before, saved = directory.read_spec(), steps_saved(directory)
    if before.is_script != (run.command is not None):
        was, now = ("a script", "a model") if before.is_script else ("a model", "a script")
        raise BadInput(
            f"run {directory.name} was started with {was}, and the run file now has {now}",
            f"start a new run: run it again with --set name={directory.free_name()}",
        )
    if before.is_script:
        return  # what decides its weights is the script's own
    there = _reference(directory) if on is None else f"{directory.name} --on {on}"
    resume = f"headway resume {there}"
    changed = changed_identity(before.run, run)
    others = [change for change in changed if not change.startswith("train_for:")]
    listed = "\n  ".join(changed)
    if changed and not saved:
        if not directory.is_running():  # else the start is refused for that
            say(
                f"run {directory.name} has no checkpoint yet: restarting it with the new settings:"
                f"\n  {listed}"
            )
    elif others:
        raise BadInput(
            f"run {directory.name} was started with other settings:\n  {listed}",
            f"{resume} continues with the old settings; or start a new run"
            + (
                f": run it again with --set name={directory.free_name()}"
                if on is not None
                else f" from this one{_fork_with(directory, before.run, run)}"
            ),
        )
    elif changed:
        lengths = _Lengths.of(directory, before, run.train_for)
        if extend:
            _require_extendable(directory, before, lengths, saved, on)
        else:
            again = (
                f"run it again with {_set('train_for', lengths.before)}"
                if on is not None
                else resume
            )
            raise BadInput(
                f"run {directory.name} was started with another length:\n  {listed}",
                f"to resume with {lengths.before}: {again}"
                if lengths.is_shorter
                else "--extend makes a run longer",
            )


@dataclass(frozen=True)
class _Lengths:
    """The length that the run was started with, and the one it is given now."""

    before: Length
    now: Length
    steps_before: int | None
    """None for epochs of unknown length: in a fork before its first start."""
    steps_now: int | None

    @classmethod
    def of(cls, directory: RunDirectory, spec: Resolved, now: Length) -> _Lengths:
        started = [event for event in directory.history() if event["event"] == "started"]
        samples = started[-1]["samples"] if started else None

        def steps(length: Length) -> int | None:
            if length.unit == "epochs" and samples is None:
                return None
            batch, sequence_length = spec.global_batch, spec.run.data.sequence_length
            return num_steps(length.unit, length.amount, batch, sequence_length, samples)

        before = spec.run.train_for
        return cls(before, now, steps(before), steps(now))

    @property
    def is_shorter(self) -> bool:
        """False where they cannot be compared."""
        if self.steps_before is not None and self.steps_now is not None:
            return self.steps_now < self.steps_before
        return self.now.unit == self.before.unit and self.now.amount < self.before.amount


def _require_extendable(
    directory: RunDirectory, before: Resolved, lengths: _Lengths, saved: list[int], on: str | None
) -> None:
    """Raises if it becomes shorter, or if the learning rate would rise after its decay."""
    old, new = lengths.steps_before, lengths.steps_now
    if lengths.is_shorter:
        early = [step for step in saved if new is None or step < new]
        raise BadInput(
            f"run {directory.name} was started with train_for: {lengths.before}, and "
            f"{lengths.now} is shorter",
            f"start a new run of that length: {_new_run(directory, early, lengths.now, on)}",
        )
    if old is None or new is None:
        return
    schedule, step = before.run.schedule, saved[-1]
    last, following = lr_ratio(schedule, max(step - 1, 0), old), lr_ratio(schedule, step, new)
    begin = decay_start(schedule, old)
    if schedule.type == "wsd" and step > begin:
        early = [one for one in saved if one <= begin] if on is None else []
        raise BadInput(
            f"the learning rate has been decaying since step {begin} and run {directory.name} is "
            f"at step {step}: extending it would raise the rate from {last:.3g} to "
            f"{following:.3g} times its peak",
            ("start a new run from before the decay: " if early else "start a new run: ")
            + _new_run(directory, early, lengths.now, on),
        )
    is_warming_up = step < schedule.warmup.steps(old)
    if abs(following - last) >= SMALLEST_JUMP and not is_warming_up:
        warn(
            f"from step {step} on, the learning rate follows a {schedule.type} schedule of {new} "
            f"steps: it jumps from {last:.3g} to {following:.3g} of its peak"
        )


def _new_run(directory: RunDirectory, early: list[int], length: Length, on: str | None) -> str:
    """Command for a new run of that length, forked from the newest of `early` if there is one."""
    setting = _set("train_for", length)
    if not early or on is not None:
        # Only flags: a whole command would lack the run file and the flags that the user typed.
        return f"run it again with --set name={directory.free_name()} {setting}"
    return f"{_fork(directory, early[-1])} {setting}"


def _fork_with(directory: RunDirectory, before: RunFile, run: RunFile) -> str:
    """End of a hint: a fork with the new settings, as far as --set can express them."""
    simple = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in changed_values(before, run).items()
        if isinstance(value, str | bool | int | float)
    }
    try:
        forked = changed_run(before, [f"{key}={value}" for key, value in simple.items()])
        left = list(changed_values(forked, run))
    except BadInput:  # they are valid only together with the others
        simple, left = {}, list(changed_values(before, run))
    more = f" (add --set for {', '.join(left)})" if left else ""
    return f"{more}: {' '.join([_fork(directory), *(_set(*one) for one in simple.items())])}"


def _fork(directory: RunDirectory, step: int | None = None) -> str:
    at = "" if step is None else f"@{step}"
    return f"headway fork {_reference(directory, at)} {directory.free_name()}"


def _reference(directory: RunDirectory, at: str = "") -> str:
    """Its name if that is enough here, else its location: the run file may be in another folder."""
    is_here = directory.location == str(Path.cwd() / "runs" / directory.name)
    return shlex.quote((directory.name if is_here else directory.location) + at)


def _set(key: str, value: object) -> str:
    return f"--set {shlex.quote(f'{key}={value}')}"
