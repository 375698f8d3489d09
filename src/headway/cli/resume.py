"""headway resume: continue a stopped run, from its directory alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import OnOption, RunArgument, TakeOverOption, TrustCodeOption
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
    """Only a run whose objects still exist: stopped by `headway stop` or by its budget, or waiting
    for machines."""
    from headway.cli.target_launch import wait_until_training

    cluster = run.cluster
    run.require_same_version()
    shape = cluster.job_status(cluster.require_job())
    if shape.state == "active":
        raise StillRunning(f"run {run.name} is already running", "headway status")
    if shape.state == "queued":
        raise StillRunning(f"run {run.name} is already waiting {shape.why}", "headway status")
    # One that gave its pods back is told to try again now.
    if shape.state not in ("suspended", "waiting"):
        raise BadInput(f"run {run.name} is {shape.state}", f"headway run --on {run.on}")
    if not cluster.has_coordinator():
        raise BadInput(
            f"run {run.name} was launched by an older Headway, or not completely",
            f"to launch it again, from its newest checkpoint: headway run --on {run.on}",
        )
    if nodes is not None:
        run.require_scalable(nodes)
    cluster.resume()
    if nodes is not None and nodes != shape.nodes:
        cluster.scale(nodes)
    wait_until_training(run, is_new=False)
