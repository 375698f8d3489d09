"""headway run --on TARGET: what the run needs is brought there, its objects are made, and it is
waited for until it trains."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer

from headway.cli.on_target import digests_here, fitted, placing_on, warn_of_keys, warn_of_placing
from headway.cli.output import hint, say, warn
from headway.cli.target_run import TargetRun, bucket_of, end_claim_pods, note_started_on
from headway.clock import SystemClock
from headway.errors import BadInput, HeadwayError, RunFailed, StillRunning
from headway.kube.delivery import TRAIN, Key, Layout, Place, local_places, model_files
from headway.kube.manifests import manifests
from headway.launch.delivering import deliver, is_there
from headway.member.keys import new_key
from headway.spec.load import load_target
from headway.spec.resolve import run_name
from headway.state.code import code_files
from headway.state.rundir import RunDirectory
from headway.state.store import Store

if TYPE_CHECKING:
    from headway.cli.sets import Sets
    from headway.launch.delivering import Files
    from headway.spec.load import Loaded, LoadedTarget
    from headway.spec.resolve import Resolved


def launch_on(loaded: Loaded, on: str, nodes: int | None, extend: bool) -> None:
    with TemporaryDirectory(prefix="headway-") as scratch:
        run = _launch(loaded, on, nodes, extend, Path(scratch))
    end_claim_pods()
    if run is not None:
        _wait(run)


def _launch(
    loaded: Loaded, on: str, nodes: int | None, extend: bool, scratch: Path
) -> TargetRun | None:
    """None if it has finished already."""
    from headway.cli.run import is_finished, require_fitting_sets
    from headway.cli.sets import sets_of

    found = load_target(on, loaded.folder)
    run = TargetRun(run_name(loaded), on, found.target, loaded.folder, bucket_of(loaded))
    _refuse_active(run)
    warn_of_keys(loaded)
    with placing_on(found):
        layout = Layout.of(loaded.run, found.target)
    places = local_places(loaded, lambda path: path.is_dir())
    # What is missing or does not fit is said before anything is prepared.
    warn_of_placing(
        loaded, found, fitted(loaded, found, nodes, layout, places, digests_here(loaded, places))
    )
    _warn_of_one_machine(run, found)
    with ExitStack() as nothing_in_the_background:
        sets = sets_of(loaded, nothing_in_the_background)
    require_fitting_sets(loaded, sets)
    places = [*(place for place in places if place.kind != "sets"), *_set_places(sets, scratch)]
    digests = digests_here(loaded, places)
    resolved = fitted(loaded, found, nodes, layout, places, digests)
    storage = Store(run.storage)
    if RunDirectory.exists(run.location) and (before := run.directory()).has_spec():
        _refuse_other(before, resolved, extend)
        if is_finished(before) and not extend:
            say(f"run {run.name} has finished already on {on}")
            hint("--extend with a longer train_for goes on; another name starts anew")
            return None
    _deliver(storage, places, digests)
    cluster = run.cluster
    if cluster.job() is not None:
        cluster.delete(say)  # stopped or ended: its pods may not change, so it is made anew
    cluster.launch(manifests(resolved, found.target, new_key()))
    note_started_on(loaded.folder, run.name, on, run.bucket)
    return run


def resume_on(run: TargetRun, nodes: int | None) -> None:
    """A stopped run as it was."""
    cluster = run.cluster
    shape = cluster.on_cluster(cluster.require_job())
    if shape.state == "active":
        raise StillRunning(f"run {run.name} goes on already", "headway status")
    if shape.state == "queued":
        raise StillRunning(f"run {run.name} waits {shape.why}", "headway status")
    if shape.state != "suspended":
        raise BadInput(f"run {run.name} is {shape.state}", f"headway run --on {run.on}")
    if nodes is not None:
        run.require_scalable(nodes)
    cluster.resume()
    if nodes is not None and nodes != shape.nodes:
        cluster.scale(nodes)
    _wait(run, is_new=False)


def _wait(run: TargetRun, is_new: bool = True) -> None:
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


def _warn_of_one_machine(run: TargetRun, found: LoadedTarget) -> None:
    """A warning, for all pods may be on one machine: where there is one only, or by luck."""
    claim = run.target.storage.claim if run.target.storage is not None else None
    modes = run.kube.claim_modes(claim) if claim is not None else None
    if modes and "ReadWriteMany" not in modes:
        warn(
            f"{found.mark(('storage', 'claim'))}: claim {claim} is {' and '.join(modes)}: one "
            "machine at a time can write to it, and the run's pods wait if they are on several"
        )
        hint("a claim with accessModes: [ReadWriteMany], or storage: s3://BUCKET/PREFIX")


def _refuse_active(run: TargetRun) -> None:
    job = run.cluster.job()
    shape = run.cluster.on_cluster(job) if job is not None else None
    if shape is None or not shape.is_to_go_on:
        return
    if not run.cluster.has_coordinator():
        return  # a launch that was cut off
    if shape.state == "queued":
        raise StillRunning(
            f"run {run.name} waits already on {run.on}, {shape.why}",
            f"headway status; headway delete {run.name} takes it out of the queue",
        )
    raise StillRunning(
        f"run {run.name} goes on already on {run.on}", "headway status; headway stop"
    )


def _refuse_other(before: RunDirectory, resolved: Resolved, extend: bool) -> None:
    from headway.cli.run import refuse_changes
    from headway.spec.changes import changed_identity

    refuse_changes(before, changed_identity(before.read_spec().run, resolved.run), extend)


def _set_places(sets: Sets, scratch: Path) -> list[Place]:
    """Sets on this machine. A mixture goes there with its members, and finds them beside it."""
    named: dict[Key, str] = {TRAIN: sets.train}
    named |= {("data", "validation", name): place for name, place in sets.validation.items()}
    here = {key: Path(place) for key, place in named.items() if "://" not in place}
    return [place for key, path in here.items() for place in _with_members(key, path, scratch)]


def _with_members(key: Key, path: Path, scratch: Path) -> list[Place]:
    from headway.data.reading.mixture import MIXTURE, read_mixture

    if not (path / MIXTURE).is_file():
        return [Place(key, "sets", path)]
    mixture = read_mixture(path)
    places, members = [], []
    for member in mixture.members:
        if "://" not in member.location:
            places.append(Place((*key, "mixture", member.name), "sets", path / member.location))
            member = member.model_copy(update={"location": f"../{member.digest}"})
        members.append(member)
    there = scratch / "-".join(key)
    there.mkdir()
    moved = mixture.model_copy(update={"members": tuple(members)})
    (there / MIXTURE).write_text(moved.model_dump_json(indent=2, exclude_none=True) + "\n")
    return [*places, Place(key, "sets", there)]


def _deliver(storage: Store, places: list[Place], digests: dict[Key, str]) -> None:
    for place in places:
        if place.kind == "tokenizers":
            continue
        name = f"{place.kind}/{digests[place.key]}"
        if is_there(storage, name):
            continue
        what = f"{'.'.join(place.key)} to {storage.location(name)}"
        shown = _Progress(what)
        deliver(storage, name, _files(place), shown, say, SystemClock())
        say(f"brought {what}")


class _Progress:
    """A line each tenth."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._tenths = 0

    def __call__(self, sent: int, total: int) -> None:
        tenths = 10 * sent // total if total else 10
        if tenths > self._tenths and tenths < 10:
            self._tenths = tenths
            say(f"{self._what}: {tenths}0 %")


def _files(place: Place) -> Files:
    match place.kind:
        case "code":
            paths = code_files(place.path)
        case "models":
            paths = model_files(place.path)
        case _:
            paths = [path for path in place.path.rglob("*") if path.is_file()]
    return {str(path.relative_to(place.path)): path for path in paths}
