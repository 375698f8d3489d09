"""headway delete: remove runs for good."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.completion import local_runs
from headway.cli.options import OnOption
from headway.cli.output import hint, say, warn

if TYPE_CHECKING:
    from headway.cli.target_run import TargetRun
    from headway.cli.uploads import Uploads

ALL_SAVED = "with all that it saved"


def delete(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Names, folders or addresses of runs; or data-KEY, a preparation on a target.",
            autocompletion=local_runs,
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    on: OnOption = None,
    uploaded: Annotated[
        bool,
        typer.Option(
            "--uploaded",
            help="On a target: also sets, code, packages and models that no other run uses.",
        ),
    ] = False,
) -> None:
    """Delete runs with their checkpoints, logs and ledgers. This cannot be undone."""
    # All are looked up first: a misspelt name among several deletes nothing.
    names = list(dict.fromkeys(runs))
    uploads = _uploads(names, on) if uploaded else []
    # Of a run that was deleted before, that may be all that is left.
    gone = {
        run.name
        for one in uploads
        for run in one.runs
        if run.name in one.left_of and not _is_there(run)
    }
    deletions = [_deletion(name, on, uploaded) for name in names if name not in gone]
    if not yes:
        parts = [one.what for one in deletions]
        parts += [words for one in uploads if (words := one.in_words()) is not None]
        what = "\n  ".join(parts)
        asked = f"delete {what}?" if len(parts) == 1 else f"delete these?\n  {what}\n"
        typer.confirm(asked, abort=True, err=True)
    for one in deletions:
        one.delete()
    for of_target in uploads:
        of_target.remove()


def _uploads(names: list[str], on: str | None) -> list[Uploads]:
    """By target, before anything is deleted."""
    from headway.cli.target_run import target_run
    from headway.cli.uploads import uploads_of
    from headway.errors import BadInput

    by_target: dict[tuple[str, str | None], list[TargetRun]] = {}
    for name in names:
        there = target_run(name, on, Path.cwd())
        if there is None:
            raise BadInput(
                f"--uploaded is for runs on a target, and {name} is on this machine",
                f"headway delete {name} --on TARGET --uploaded",
            )
        key = (there.on, there.bucket if there.target.storage is None else None)
        by_target.setdefault(key, []).append(there)
    return [uploads_of(runs) for runs in by_target.values()]


def _is_there(run: TargetRun) -> bool:
    return run.cluster.job() is not None or _may_be_saved(run)


@dataclass(frozen=True)
class Deletion:
    what: str
    delete: Callable[[], None]


def _deletion(name: str, on: str | None, uploaded: bool) -> Deletion:
    """Raises if there is no such run, or if it is still running."""
    from headway.cli.target_run import target_run
    from headway.clock import SystemClock
    from headway.errors import StillRunning
    from headway.state.checkpoints import steps_saved
    from headway.state.find_run import find_run
    from headway.state.heartbeat import require_alone
    from headway.state.removal import remove_run
    from headway.state.status import read_status

    if (there := target_run(name, on, Path.cwd())) is not None:
        return _deletion_of_preparation(there, uploaded) or deletion_on(there)
    directory, clock = find_run(name, Path.cwd()), SystemClock()
    if read_status(directory, clock.now()).state in ("starting", "running"):
        raise StillRunning(f"run {directory.name} is still running", f"headway stop {name}")
    saved = steps_saved(directory)
    what = f"{directory.location} with checkpoints of steps {', '.join(map(str, saved)) or 'none'}"

    require_alone(directory, clock, "wait a minute or two")

    def delete() -> None:
        remove_run(directory, clock)
        say(f"deleted {what}")

    return Deletion(what, delete)


def _deletion_of_preparation(there: TargetRun, uploaded: bool) -> Deletion | None:
    """None if it is a run."""
    from headway.clock import SystemClock
    from headway.launch.data_run import DataRun, is_preparation

    preparation = DataRun(there.kube, there.name, there.on, SystemClock())
    job = preparation.job()
    if job is None or not is_preparation(job):
        return None
    stays = "" if uploaded else "; what it has prepared stays"
    what = f"preparation {there.name} on {there.on}{stays}"

    def delete() -> None:
        preparation.end()
        say(f"deleted {what}")

    return Deletion(what, delete)


def deletion_on(run: TargetRun) -> Deletion:
    """Of its objects, and of everything that it saved."""
    from headway.errors import NotFound, StillRunning

    job = run.cluster.settled_end(say)
    if job is not None and run.cluster.job_status(job).state == "active":
        raise StillRunning(
            f"run {run.name} is still running", f"headway stop {run.name} --on {run.on}"
        )
    if job is None and not _may_be_saved(run):
        raise NotFound(f"there is no run {run.name} on {run.on}", f"headway list --on {run.on}")
    return Deletion(f"run {run.name} on {run.on} {ALL_SAVED}", functools.partial(delete_on, run))


def _may_be_saved(run: TargetRun) -> bool:
    """Also if the storage cannot be asked: then deleting tells why."""
    from headway.errors import HeadwayError
    from headway.state.run_directory import RunDirectory

    try:
        return RunDirectory.exists(run.location)
    except (HeadwayError, OSError):
        return True


def delete_on(run: TargetRun) -> None:
    from headway.cli.target_run import note_started_on
    from headway.errors import HeadwayError, NotFound, RunFailed

    what = f"run {run.name} on {run.on}"
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
    say(f"deleted {what} {ALL_SAVED}" if was_saved else f"deleted {what}; it had saved nothing")


def delete_saved(run: TargetRun) -> bool:
    """Returns whether anything was saved."""
    from headway.clock import SystemClock
    from headway.state.removal import remove_run
    from headway.state.run_directory import RunDirectory

    was_saved, directory = RunDirectory.exists(run.location), RunDirectory(run.location)
    if directory.store.children(""):
        remove_run(directory, SystemClock())
    return was_saved


def _kept(run: TargetRun) -> str:
    """Where its directory is, for a user who looks for it without Headway."""
    storage = run.target.storage
    if run.bucket is None and storage is not None and storage.claim is not None:
        return f"in claim {storage.claim} of namespace {run.kube.namespace}, below runs/{run.name}"
    return f"in {run.location}"
