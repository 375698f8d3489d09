"""headway run --on TARGET: what the run needs is brought there, its objects are made, and it is
waited for until it trains."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from headway.cli.bringing import bring, set_places
from headway.cli.on_target import digests_here, fitted, placing_on, warn_of_keys, warn_of_placing
from headway.cli.output import hint, say, warn
from headway.cli.target_run import TargetRun, bucket_of, end_claim_pods, note_started_on
from headway.cli.waiting import wait_until_it_trains
from headway.errors import StillRunning
from headway.kube.delivery import Layout, local_places
from headway.kube.manifests import manifests
from headway.member.keys import new_key
from headway.spec.load import load_target
from headway.spec.resolve import run_name
from headway.state.rundir import RunDirectory
from headway.state.store import Store

if TYPE_CHECKING:
    from headway.spec.load import Loaded, LoadedTarget


def launch_on(loaded: Loaded, on: str, nodes: int | None, extend: bool) -> None:
    with TemporaryDirectory(prefix="headway-") as scratch:
        run = _launch(loaded, on, nodes, extend, Path(scratch))
    end_claim_pods()
    if run is not None:
        wait_until_it_trains(run)


def _launch(
    loaded: Loaded, on: str, nodes: int | None, extend: bool, scratch: Path
) -> TargetRun | None:
    """None if it has finished already."""
    from headway.cli.run import is_finished, require_fitting_sets
    from headway.cli.sets import sets_of
    from headway.cli.starting_again import require_same_run

    found = load_target(on, loaded.folder)
    run = TargetRun(run_name(loaded), on, found.target, loaded.folder, bucket_of(loaded))
    _refuse_active(run)
    warn_of_keys(loaded)
    with placing_on(found):
        layout = Layout.of(loaded.run, found.target)
    places = local_places(loaded, lambda path: path.is_dir())
    # What is missing or does not fit is said before anything is prepared.
    digests = digests_here(loaded, places)
    warn_of_placing(loaded, found, fitted(loaded, found, nodes, layout, places, digests))
    _warn_of_one_machine(run, found)
    with ExitStack() as nothing_in_the_background:
        sets = sets_of(loaded, nothing_in_the_background)
    require_fitting_sets(loaded, sets)
    sets_here = set_places(sets, scratch)
    places = [*(place for place in places if place.kind != "sets"), *sets_here]
    digests |= digests_here(loaded, sets_here)
    resolved = fitted(loaded, found, nodes, layout, places, digests)
    storage = Store(run.storage)
    if RunDirectory.exists(run.location) and (before := run.directory()).has_spec():
        require_same_run(before, resolved.run, extend, on)
        if is_finished(before) and not extend:
            say(f"run {run.name} has finished already on {on}")
            hint("--extend with a longer train_for goes on; another name starts anew")
            return None
    bring(storage, places, digests)
    cluster = run.cluster
    if cluster.job() is not None:
        cluster.delete(say)  # stopped or ended: its pods may not change, so it is made anew
    cluster.launch(manifests(resolved, found.target, new_key()))
    note_started_on(loaded.folder, run.name, on, run.bucket)
    return run


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
