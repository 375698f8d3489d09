"""headway run --on TARGET: uploads what the run needs, creates its objects, and waits until it is
training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer

from headway import __version__
from headway.cli.code_changes import tell_code_change
from headway.cli.hub_pins import (
    forget_first_start,
    spec_before,
    with_begun,
    with_hub_commits,
)
from headway.cli.launch_check import require_room_for
from headway.cli.launch_plan import note_plan
from headway.cli.output import hint, say, warn
from headway.cli.plan.gate import require_planned
from headway.cli.preflight import say_auto_interval, warn_of_run_file
from headway.cli.run_packages import packages_of
from headway.cli.target_render import TargetPlan, require_complete_target, target_plan
from headway.cli.target_run import TargetRun, bucket_of, end_claim_pods, note_started_on
from headway.clock import SystemClock
from headway.errors import BadInput, HeadwayError, NotFound, RunFailed, StillRunning
from headway.kube.api_errors import Conflict, RequestRefused
from headway.kube.storage_layout import TRAIN, Key, LocalFolder, model_files
from headway.kube.wheels import own_digest
from headway.launch.cluster_run import LOOK_SECONDS
from headway.launch.job_status import is_launching
from headway.launch.packages import ARCHIVE, python_on
from headway.launch.storage_prune import note_used
from headway.launch.training_wait import status_when_training
from headway.launch.upload import is_uploaded, upload
from headway.member.protocol.keys import new_key
from headway.preflight.preflight import preflight
from headway.spec.load import load_target
from headway.spec.resolve import run_name
from headway.state.code_folder import CodeFolder
from headway.state.file_listing import listing_of
from headway.state.set_files import MIXTURE
from headway.state.store import Store
from headway.state.trusted_code import trust_code

if TYPE_CHECKING:
    from lightkube.resources.batch_v1 import Job

    from headway.cli.run_sets import Sets
    from headway.cli.sets_on_target import SetsOnTarget
    from headway.kube.names import Object
    from headway.launch.upload import Files
    from headway.spec.load import Loaded
    from headway.spec.resolve import Resolved


def launch_on(loaded: Loaded, on: str, nodes: int | None, extend: bool, anyway: bool) -> None:
    """`anyway`: also what does not fit by its plan."""
    with TemporaryDirectory(prefix="headway-") as scratch:
        run = _launch(loaded, on, nodes, extend, Path(scratch), anyway)
    end_claim_pods()
    if run is not None:
        wait_until_training(run)


def _launch(
    loaded: Loaded, on: str, nodes: int | None, extend: bool, scratch: Path, anyway: bool
) -> TargetRun | None:
    """Create the run's objects. None if it has already finished."""
    from headway.cli.restart_check import is_left_to_train
    from headway.cli.run_sets import trainable_sets

    found = load_target(on, loaded.folder)
    run = TargetRun(run_name(loaded), on, found.target, loaded.folder, bucket_of(loaded))
    require_complete_target(loaded, found)
    job = run.cluster.settled_end(say)
    _refuse_active(run, job)
    warn_of_run_file(loaded)
    # What is missing or does not fit is refused before anything is prepared.
    preflight(loaded, is_here=False).raise_problems()
    plan = target_plan(loaded, found, nodes)
    plan.warn()
    require_planned(
        loaded, on, nodes, anyway, lambda: job is not None or _launched_before(run) is not None
    )
    require_room_for(run, plan, found, is_new=job is None)
    before = _launched_before(run)
    loaded = with_hub_commits(with_begun(loaded, before), lambda: before, on)
    plan = replace(plan, loaded=loaded)
    packages = packages_of(loaded, lambda: python_on(found.target), run.location)
    from headway.cli.sets_on_target import SetsOnTarget

    there = SetsOnTarget(run, found, loaded.run.secrets)
    with ExitStack() as nothing_in_the_background:
        sets = trainable_sets(loaded, nothing_in_the_background, there)
    folders = _set_folders(sets, scratch, there)
    plan = plan.with_sets(folders, there.folders(named_sets(sets))).with_packages(packages)
    storage = Store(run.storage)

    is_left = is_left_to_train(
        run.location, plan.resolved.run, extend, on, lambda: plan.resolved.script_digest
    )
    if not is_left:
        return None
    say_auto_interval(plan.resolved)
    upload_folders(storage, plan, on)
    tell_code_change(run.location, plan.code)
    note_plan(loaded, run.location, plan.resolved.nodes, on, sets.train)
    there.let_go()
    _create(run, plan.objects(new_key()))
    there.belong_to(run.cluster.job())
    note_started_on(loaded.folder, run.name, on, run.bucket)
    trust_code(plan.resolved)
    forget_first_start(loaded)
    return run


def _create(run: TargetRun, objects: Sequence[Object]) -> None:
    """All of them, or none."""
    try:
        _delete_old(run)
        run.cluster.launch(objects)
    except RequestRefused as error:
        _clean_up(run)
        if isinstance(error, Conflict):
            error.hint = (
                f"somebody else has just launched run {run.name}: headway status {run.name} --on "
                f"{run.on}"
            )
        if error.message.startswith(("Role ", "RoleBinding ")):
            error.hint = (
                "without this permission: service_account: {coordinator: headway-coordinator} in "
                "the target, and once, by an administrator: "
                f"headway target rbac {run.on} | kubectl apply -f -"
            )
        raise
    except (HeadwayError, KeyboardInterrupt):
        _clean_up(run)  # or the next launch waits for this one, and Kueue may start it
        raise


def _delete_old(run: TargetRun) -> None:
    """Stopped or ended: its pods may not change, so it is made anew. Somebody may have launched it
    during the upload, or be about to."""
    job = run.cluster.settled_job(say)
    _refuse_active(run, job)
    if job is not None and job.metadata is not None:
        # A launch that goes on after all has changed it.
        version = job.metadata.resourceVersion if is_launching(job) else None
        run.cluster.delete(say, job.metadata.uid, version)


def _launched_before(run: TargetRun) -> Resolved | None:
    """The run as it was started last, from its objects or from the storage."""
    try:
        return run.cluster.launched_as() or spec_before(run.location)
    finally:
        end_claim_pods()  # preparing may take longer than such a pod lasts


def _refuse_active(run: TargetRun, job: Job | None) -> None:
    """Raises if its Job is under way, and is not just being launched."""
    shape = run.cluster.job_status(job) if job is not None else None
    if job is None or shape is None or not shape.is_under_way or run.cluster.is_unfinished(job):
        return
    if shape.state == "queued":
        raise StillRunning(
            f"run {run.name} is already waiting on {run.on}, {shape.why}",
            f"to take it out of the queue: headway stop {run.name} --on {run.on}",
        )
    if shape.state == "waiting":
        raise StillRunning(
            f"run {run.name} is already waiting for machines on {run.on}: {shape.why}",
            f"to try again now: headway resume {run.name} --on {run.on}; to stop it: headway stop "
            f"{run.name} --on {run.on}",
        )
    if run.cluster.lacks_coordinator():
        raise StillRunning(
            f"run {run.name} is already running on {run.on}, without a coordinator",
            f"to put it back: headway resume {run.name} --on {run.on}",
        )
    raise StillRunning(
        f"run {run.name} is already running on {run.on}",
        f"headway status shows it; to stop it: headway stop {run.name} --on {run.on}",
    )


def named_sets(sets: Sets) -> dict[Key, str]:
    """Their locations by the keys that name them."""
    named: dict[Key, str] = {TRAIN: sets.train} if sets.train else {}
    return named | {("data", "validation", name): path for name, path in sets.validation.items()}


def _set_folders(sets: Sets, scratch: Path, there: SetsOnTarget) -> list[LocalFolder]:
    """Sets on this machine. A mixture is uploaded with its members, and finds them beside it."""
    here = {key: Path(path) for key, path in named_sets(sets).items() if "://" not in path}
    return [
        folder for key, path in here.items() for folder in _with_members(key, path, scratch, there)
    ]


def _with_members(key: Key, path: Path, scratch: Path, there: SetsOnTarget) -> list[LocalFolder]:
    from headway.data.reading.mixture import read_mixture

    if not (path / MIXTURE).is_file():
        return [LocalFolder(key, "sets", path)]
    mixture = read_mixture(Store(path))
    folders, members = [], []
    for member in mixture.members:
        if "://" not in member.location:
            folders.append(
                LocalFolder((*key, "mixture", member.name), "sets", path / member.location)
            )
            member = member.model_copy(update={"location": f"../{member.digest}"})
        else:
            member = member.model_copy(update={"location": there.in_pods(member.location)})
        members.append(member)
    moved_to = scratch / "-".join(key)
    moved_to.mkdir()
    moved = mixture.model_copy(update={"members": tuple(members)})
    (moved_to / MIXTURE).write_text(moved.model_dump_json(indent=2, exclude_none=True) + "\n")
    return [*folders, LocalFolder(key, "sets", moved_to)]


def upload_folders(storage: Store, plan: TargetPlan, on: str) -> None:
    clock, run, has_uploaded = SystemClock(), plan.resolved.name, False
    named = {
        f"{folder.kind}/{plan.digests[folder.key]}": folder
        for folder in plan.folders
        if folder.kind != "tokenizers"
    }
    for name, folder in named.items():
        note_used(storage, name, clock, on, run)
        if is_uploaded(storage, name):
            continue
        has_uploaded = True
        digest = plan.digests[folder.key]
        what = f"{'.'.join(folder.key)} to {storage.location(name)}"
        files, listing = _files_and_listing(folder, plan.code, digest)
        upload(storage, name, files, listing, _Progress(what), say, clock)
        say(f"uploaded {what}")
    for name in named if has_uploaded else ():
        # Uploads may take hours, and whoever deletes a run with what it uploaded waits for nobody
        # that long.
        note_used(storage, name, clock, on, run)
        if not is_uploaded(storage, name):
            raise StillRunning(
                f"{storage.location(name)} was removed during the upload",
                "run the same command again",
            )


class _Progress:
    """Prints a line per tenth of an upload."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._tenths = 0

    def __call__(self, sent: int, total: int) -> None:
        tenths = 10 * sent // total if total else 10
        if tenths > self._tenths and tenths < 10:
            self._tenths = tenths
            say(f"uploading {self._what}: {tenths}0 %")


def _files_and_listing(
    folder: LocalFolder, code: CodeFolder | None, digest: str
) -> tuple[Files, bytes]:
    """What is uploaded, and the content of its `.whole`."""
    if folder.kind == "sets":
        found = [path for path in folder.path.rglob("*") if path.is_file()]
        sets = {path.relative_to(folder.path).as_posix(): path for path in found}
        sizes = {name: path.stat().st_size for name, path in sorted(sets.items())}
        return sets, json.dumps(sizes, indent=2).encode() + b"\n"
    files: Files
    if folder.kind == "packages":
        files = {ARCHIVE: folder.path / ARCHIVE}
        listing = listing_of(files)
    elif folder.kind == "code":
        assert code is not None
        files, listing = code.files, code.listing
    else:
        files = {path.name: path for path in model_files(folder.path)}
        listing = listing_of(files)
    if listing.digest != digest:
        raise BadInput(
            f"{'.'.join(folder.key)}: {folder.path} changed while it was being read",
            "run the same command again",
        )
    return files, listing.content


def wait_until_training(run: TargetRun, is_new: bool = True) -> None:
    try:
        status = status_when_training(run.cluster, say)
        is_stopped = status.get("state") != "running" and _is_suspended(run)
        if is_stopped:
            _raise_failure(run)
    except KeyboardInterrupt:
        say(f"no longer waiting; run {run.name} continues on {run.on}")
        hint("headway status", "headway stop")
        raise typer.Exit(130) from None
    except RunFailed as error:
        if is_new:
            _clean_up(run)
        left = "its objects are deleted; what it had saved is kept" if is_new else None
        raise RunFailed(error.message, error.hint or left) from None
    finally:
        _warn_of_other_files(run)
    is_script = status.get("is_script", False)
    if is_stopped:
        say(f"run {run.name} was stopped on {run.on} before its first step")
        hint("is its budget used up? headway status", "headway resume")
        return
    if status.get("state") != "running":
        say(f"run {run.name} has finished on {run.on}")
        hint("headway status", *([] if is_script else ["headway export"]))
        return
    if is_script:
        say(f"the script of run {run.name} is running on {run.on}")
    else:
        say(f"run {run.name} is training on {run.on}: step {status['step']}")
    hint("headway status", "headway logs -f", "headway stop")


def wait_for_end(run: TargetRun, until: float) -> None:
    """Until its pods have ended well. Raises RunFailed if they have not, or at `until`."""
    cluster = run.cluster
    while True:
        status = cluster.patiently(lambda: cluster.job_status(cluster.require_job()), say)
        if status.state == "finished":
            return
        if status.state in ("failed", "suspended"):
            _raise_failure(run)
            raise RunFailed(f"run {run.name} has ended on {run.on}: {status.why or status.state}")
        if cluster.clock.monotonic() > until:
            raise RunFailed(f"run {run.name} trains on {run.on}, and has not ended in time")
        cluster.clock.sleep(LOOK_SECONDS)


def _is_suspended(run: TargetRun) -> bool:
    job = run.cluster.job()
    return job is not None and run.cluster.job_status(job).state == "suspended"


def _raise_failure(run: TargetRun) -> None:
    """If the keeper has given the run up. It suspends the Job and ends; what it noted is in the
    storage."""
    from headway.state.status import read_status

    try:
        found = read_status(run.directory(), SystemClock().now())
    except (NotFound, OSError):
        return
    if found.state == "failed":
        raise RunFailed(found.failure or "no reason given", found.failure_hint)


def _warn_of_other_files(run: TargetRun) -> None:
    """All commits of a clone call themselves by the same version. Only a warning: most of them work
    with each other."""
    theirs, ours = run.cluster.files, own_digest()
    if theirs is not None and theirs != ours:
        warn(
            f"the image has other files of Headway {__version__} than this installation (digests "
            f"{theirs} and {ours})"
        )
        hint("build the image from the clone that you launch with")


def _clean_up(run: TargetRun) -> None:
    """Deletes the objects of a run that cannot start, if this command has created them."""
    if run.cluster.launched_uid is None:
        return
    try:
        with suppress(Conflict):  # another is there by now
            run.cluster.delete(say, run.cluster.launched_uid)
    except HeadwayError as error:
        say(str(error))
