"""headway stop: save and stop a running run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.options import OnOption, RunArgument
from headway.cli.output import hint, say

if TYPE_CHECKING:
    from headway.clock import Clock
    from headway.state.run_directory import RunDirectory

WAIT_SECONDS = 320.0
"""Slightly longer than the launcher waits for its workers."""
POLL_SECONDS = 0.2


def stop(run: RunArgument = None, on: OnOption = None) -> None:
    """Save and stop a running run. It can be resumed."""
    from headway.cli.target_run import target_run
    from headway.clock import SystemClock
    from headway.state.find_run import find_run
    from headway.state.status import other_launcher

    if (there := target_run(run, on, Path.cwd())) is not None:
        step = there.cluster.stop(say)
        saved_up_to = f"; saved up to step {step}" if step is not None else ""
        say(f"stopped {there.name} on {there.on}{saved_up_to}")
        hint(f"headway resume {there.name} --on {there.on}")
        return
    directory = find_run(run, Path.cwd())
    clock = SystemClock()
    if (other := other_launcher(directory)) is not None:
        _stop_under(other, directory, clock)
        return
    launcher = directory.launcher_pid()
    if launcher is None:
        say(f"run {directory.name} is not running on this machine")
        return
    os.kill(launcher, signal.SIGTERM)
    _wait_until_ended(directory, clock, directory.is_running)


def _stop_under(launcher: str, directory: RunDirectory, clock: Clock) -> None:
    """Write a request that the workers read, on whatever machine they are: the launcher would
    start them again after a signal."""
    from headway.state.heartbeat import alive_elsewhere, owner

    newest = owner(directory)
    if newest is None:
        say(f"run {directory.name} is not running")
        return
    directory.want_stop(newest.launch)
    if alive_elsewhere(directory, clock) is None:
        say(f"run {directory.name} is not training now; if {launcher} starts it again, it stops")
        return
    _wait_until_ended(directory, clock, lambda: alive_elsewhere(directory, clock) is not None)


def _wait_until_ended(
    directory: RunDirectory, clock: Clock, is_running: Callable[[], bool]
) -> None:
    from headway.errors import RunFailed
    from headway.state.checkpoints import steps_saved

    deadline = clock.monotonic() + WAIT_SECONDS
    while is_running():
        if clock.monotonic() > deadline:
            raise RunFailed(
                f"run {directory.name} did not stop within {WAIT_SECONDS:.0f} s",
                f"headway logs {directory.name} --all",
            )
        clock.sleep(POLL_SECONDS)
    saved = steps_saved(directory)
    say(f"stopped {directory.name}" + (f"; saved up to step {saved[-1]}" if saved else ""))
