"""headway stop: save and stop a running run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from headway.cli.options import OnOption, RunArgument
from headway.cli.output import hint, say

WAIT_SECONDS = 320.0
"""Slightly longer than the launcher waits for its workers."""
POLL_SECONDS = 0.2


def stop(run: RunArgument = None, on: OnOption = None) -> None:
    """Save and stop a running run. It can be resumed."""
    from headway.cli.target_run import target_run
    from headway.clock import SystemClock
    from headway.errors import RunFailed
    from headway.state.checkpoints import steps_saved
    from headway.state.find_run import find_run

    if (there := target_run(run, on, Path.cwd())) is not None:
        step = there.cluster.stop(say)
        saved_up_to = f"; saved up to step {step}" if step is not None else ""
        say(f"stopped {there.name} on {there.on}{saved_up_to}")
        hint(f"headway resume {there.name} --on {there.on}")
        return
    directory = find_run(run, Path.cwd())
    clock = SystemClock()
    launcher = directory.launcher_pid()
    if launcher is None:
        say(f"run {directory.name} is not running on this machine")
        return
    os.kill(launcher, signal.SIGTERM)
    deadline = clock.monotonic() + WAIT_SECONDS
    while directory.is_running():
        if clock.monotonic() > deadline:
            raise RunFailed(
                f"run {directory.name} did not stop within {WAIT_SECONDS:.0f} s",
                f"headway logs {directory.name} --all",
            )
        clock.sleep(POLL_SECONDS)
    saved = steps_saved(directory)
    say(f"stopped {directory.name}" + (f"; saved up to step {saved[-1]}" if saved else ""))
