"""headway resume: continue a stopped run, from its directory alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import OnOption, RunArgument, TakeOverOption, TrustCodeOption
from headway.cli.output import say
from headway.errors import BadInput, StillRunning

if TYPE_CHECKING:
    from headway.cli.target_run import TargetRun


def resume(
    run: RunArgument = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            help="Number of nodes, here simulated on this machine. Default: as before.",
            min=1,
        ),
    ] = None,
    on: OnOption = None,
    take_over: TakeOverOption = False,
    trust_code: TrustCodeOption = False,
) -> None:
    """Resume a stopped run, with its settings, from its newest good checkpoint."""
    from headway.cli.run import start
    from headway.cli.target_run import target_run
    from headway.cli.trust import require_trust
    from headway.spec.load import Loaded
    from headway.spec.located_yaml import Located
    from headway.state.find_run import find_run

    if (there := target_run(run, on, Path.cwd())) is not None:
        _resume_on(there, nodes)
        return
    directory = find_run(run, Path.cwd())
    resolved = directory.read_spec()
    require_trust(directory, resolved, "resume", trust_code)
    # The spec in the directory counts, not the run file, which may have changed.
    loaded = Loaded(resolved.run, Path(resolved.folder), Located({}))
    nodes_before = resolved.nodes
    start(loaded, nodes, False, directory.location, nodes_before, takes_over=take_over)


def _resume_on(run: TargetRun, nodes: int | None) -> None:
    """Only a run whose objects still exist: stopped by `headway stop` or by its budget, waiting
    for machines, or without its coordinator."""
    from headway.cli.target_launch import wait_until_training

    cluster = run.cluster
    run.require_same_version()
    job = cluster.require_job()
    shape = cluster.job_status(job)
    is_lacking = cluster.lacks_coordinator()
    if shape.state == "active" and not is_lacking:
        raise StillRunning(f"run {run.name} is already running", "headway status")
    if shape.state == "queued" and not is_lacking:
        raise StillRunning(f"run {run.name} is already waiting {shape.why}", "headway status")
    # One that gave its pods back is told to try again now.
    if not shape.is_under_way and shape.state != "suspended":
        raise BadInput(f"run {run.name} is {shape.state}", f"headway run --on {run.on}")
    has_objects = cluster.has_coordinator()
    if not has_objects and cluster.is_unfinished(job):
        raise BadInput(
            f"run {run.name} is being launched, or its launch was interrupted",
            f"to launch it again, from its newest checkpoint: headway run --on {run.on}",
        )
    if nodes is not None:
        run.require_scalable(nodes)
    if not has_objects:
        _put_back(run)
    cluster.resume()
    if is_lacking:
        say(f"run {run.name} had no coordinator: it is put back")
    if nodes is not None and nodes != shape.nodes:
        cluster.scale(nodes)
    wait_until_training(run, is_new=False)


def _put_back(run: TargetRun) -> None:
    """Create the missing objects of the run as it was launched."""
    from headway.cli.target_render import errors_located
    from headway.kube.manifests import manifests
    from headway.member.protocol.keys import new_key
    from headway.spec.load import load_target

    resolved = run.cluster.launched_as()
    if resolved is None:
        raise BadInput(
            f"run {run.name} has lost its coordinator, and the ConfigMap that says how it was "
            "launched",
            f"headway stop {run.name} --on {run.on}; then headway run --on {run.on}, which resumes "
            "from its newest checkpoint",
        )
    with errors_located(load_target(run.on, run.folder)):
        objects = manifests(resolved, run.target, new_key())
    run.cluster.put_back(objects)
