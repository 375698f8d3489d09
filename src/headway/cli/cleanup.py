"""headway cleanup: the objects of runs that were stopped long ago."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.output import hint, say


def cleanup(
    on: Annotated[str, typer.Option("--on", metavar="TARGET", help="Target to clean up.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete the Kubernetes objects of runs that were stopped long ago. How long is keep.stopped of
    the target. Nothing that they saved is touched: headway run --on resumes them."""
    from headway.cli.target_run import TargetRun
    from headway.clock import SystemClock
    from headway.launch.kept_objects import is_still_stopped, runs_stopped_for
    from headway.spec.load import load_target

    folder = Path.cwd()
    target = load_target(on, folder).target
    kept = target.keep.stopped
    kube = TargetRun("", on, target, folder).kube
    found = list(runs_stopped_for(kube, kept.amount, SystemClock().now()))
    if not found:
        say(f"no run on {on} was stopped more than {kept} ago")
        return
    for run in found:
        print(f"{run.name}  stopped {run.seconds / 86400:.1f} days ago")
    if not yes:
        typer.confirm("delete their objects? What they saved stays", abort=True, err=True)
    for run in found:
        if is_still_stopped(kube, run):
            TargetRun(run.name, on, target, folder).cluster.delete(say, run.uid)
            say(f"deleted the objects of run {run.name}")
        else:
            say(f"run {run.name} is not stopped any more, and is left alone")
    hint(f"to resume one, with its run file: headway run --on {on}")
