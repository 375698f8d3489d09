"""headway target cleanup: the objects of runs that were stopped long ago."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import TargetArgument
from headway.cli.output import hint, say

if TYPE_CHECKING:
    from headway.cli.target_run import TargetRun
    from headway.launch.kept_objects import StoppedRun


def cleanup(
    on: TargetArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete the Kubernetes objects of runs that were stopped long ago. How long is keep.stopped of
    the target, as it was when each was launched. Nothing that they saved is touched: headway run
    --on resumes them."""
    from headway.cli.target_run import TargetRun
    from headway.clock import SystemClock
    from headway.launch.kept_objects import runs_to_clean_up
    from headway.spec.load import load_target

    folder = Path.cwd()
    target = load_target(on, folder).target
    kube, now = TargetRun("", on, target, folder).kube, SystemClock().now()
    found = list(runs_to_clean_up(kube, target.keep.stopped.amount, now))
    if not found:
        say(f"no run on {on} was stopped longer ago than keep.stopped of its target")
        return
    for run in found:
        print(f"{run.name}  stopped {(now - run.since) / 86400:.1f} days ago")
    if not yes:
        typer.confirm("delete their objects? What they saved stays", abort=True, err=True)
    for run in found:
        if _was_deleted(run, TargetRun(run.name, on, target, folder)):
            say(f"deleted the objects of run {run.name}")
        else:
            say(f"run {run.name} has changed meanwhile, and is left alone")
    hint(f"to resume one, with its run file: headway run --on {on}")


def _was_deleted(run: StoppedRun, there: TargetRun) -> bool:
    """Unless it is not as it was when it was listed."""
    from headway.kube.api_errors import Conflict
    from headway.launch.kept_objects import still_stopped

    job = still_stopped(there.kube, run)
    if job is None or job.metadata is None:
        return False
    try:
        there.cluster.delete(say, run.uid, job.metadata.resourceVersion)
    except Conflict:
        return False
    return True
