"""headway delete: remove a run for good."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import OnOption
from headway.cli.output import hint, say, warn

if TYPE_CHECKING:
    from headway.cli.target_run import TargetRun
    from headway.state.run_directory import RunDirectory


def delete(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name, folder or address of a run.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    on: OnOption = None,
) -> None:
    """Delete a run with its checkpoints, logs and ledger. This cannot be undone."""
    from headway.cli.target_run import target_run
    from headway.clock import SystemClock
    from headway.errors import StillRunning
    from headway.state.checkpoints import steps_saved
    from headway.state.find_run import find_run
    from headway.state.status import read_status

    if (there := target_run(run, on, Path.cwd())) is not None:
        _delete_on(there, yes)
        return
    directory = find_run(run, Path.cwd())
    if read_status(directory, SystemClock().now()).state in ("starting", "running"):
        raise StillRunning(
            f"run {directory.name} is still running", f"headway stop {directory.name}"
        )
    saved = steps_saved(directory)
    what = f"{directory.location} with checkpoints of steps {', '.join(map(str, saved)) or 'none'}"
    if not yes:
        typer.confirm(f"delete {what}?", abort=True, err=True)
    _remove(directory)
    say(f"deleted {what}")


def _remove(directory: RunDirectory) -> None:
    """Also what is cached of it on this machine."""
    directory.store.remove("")
    shutil.rmtree(directory.local, ignore_errors=True)


def _delete_on(run: TargetRun, yes: bool) -> None:
    """Deletes its objects, and everything that it saved."""
    from headway.cli.target_run import note_started_on
    from headway.errors import HeadwayError, NotFound, RunFailed, StillRunning

    job = run.cluster.job()
    if job is not None and run.cluster.job_status(job).state == "active":
        raise StillRunning(f"run {run.name} is still running", f"headway stop {run.name}")
    what, saved = f"run {run.name} on {run.on}", "with all that it saved"
    if not yes:
        typer.confirm(f"delete {what} {saved}?", abort=True, err=True)
    was_there = run.cluster.delete(say)
    try:
        was_saved = delete_saved(run)
    except (HeadwayError, OSError) as error:
        why = error.message if isinstance(error, HeadwayError) else str(error)
        stays = f"what it saved is still {_kept(run)}: {why}"
        if not was_there:
            raise RunFailed(f"{what} has no objects on the cluster; {stays}") from None
        warn(f"deleted the objects of {what}; {stays}")
        hint(f"once the storage can be reached: headway delete {run.name} --on {run.on}")
        return
    if not was_there and not was_saved:
        raise NotFound(f"there is no {what}", f"headway list --on {run.on}")
    note_started_on(run.folder, run.name, None)
    say(f"deleted {what} {saved}" if was_saved else f"deleted {what}; it had saved nothing")


def delete_saved(run: TargetRun) -> bool:
    """Returns whether anything was saved."""
    from headway.state.run_directory import RunDirectory

    was_saved = RunDirectory.exists(run.location)
    _remove(RunDirectory(run.location))
    return was_saved


def _kept(run: TargetRun) -> str:
    """Where its directory is, for a user who looks for it without Headway."""
    storage = run.target.storage
    if run.bucket is None and storage is not None and storage.claim is not None:
        return f"in claim {storage.claim} of namespace {run.kube.namespace}, below runs/{run.name}"
    return f"in {run.location}"
