"""A run on a target is waited for until it trains."""

from __future__ import annotations

import typer

from headway.cli.output import hint, say
from headway.cli.target_run import TargetRun
from headway.errors import HeadwayError, RunFailed


def wait_until_it_trains(run: TargetRun, is_new: bool = True) -> None:
    try:
        status = run.cluster.wait_until_it_trains(say)
    except KeyboardInterrupt:
        say(f"run {run.name} goes on, or will, on {run.on}")
        hint("headway status, headway stop")
        raise typer.Exit(130) from None
    except RunFailed as error:
        if is_new:
            _clean_up(run)
        left = "its objects are deleted, what it had saved is kept" if is_new else None
        raise RunFailed(error.message, error.hint or left) from None
    if status.get("state") != "running":
        job = run.cluster.job()
        if job is not None and run.cluster.on_cluster(job).state == "suspended":
            say(f"run {run.name} was stopped on {run.on} before it trained")
            hint("headway status says why, if its budget is used up; headway resume")
            return
        say(f"run {run.name} has finished on {run.on}")
        hint("headway status, headway export")
        return
    say(f"run {run.name} trains on {run.on}: step {status['step']}")
    hint("headway status, headway logs -f, headway scale --nodes N, headway stop")


def _clean_up(run: TargetRun) -> None:
    """After a start that cannot succeed."""
    try:
        run.cluster.delete(say)
    except HeadwayError as error:
        say(str(error))
