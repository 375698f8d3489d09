"""headway resume: go on with a run, from its directory alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import OnOption, RunArgument
from headway.errors import BadInput, StillRunning

if TYPE_CHECKING:
    from headway.cli.target_run import TargetRun


def resume(
    run: RunArgument = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            help="So many nodes; here this machine plays them. Left out: as before.",
            min=1,
        ),
    ] = None,
    on: OnOption = None,
) -> None:
    """Go on with a run as it was started, from its newest good checkpoint."""
    from headway.cli.run import start
    from headway.cli.target_run import target_run
    from headway.spec.load import Loaded
    from headway.spec.located import Located
    from headway.state.find import find_run

    if (there := target_run(run, on, Path.cwd())) is not None:
        _resume_on(there, nodes)
        return
    directory = find_run(run, Path.cwd())
    resolved = directory.read_spec()
    # The run is the one in the directory, whatever the run file says by now.
    loaded = Loaded(resolved.run, Path(resolved.folder), Located({}))
    start(loaded, nodes, False, directory.location, else_nodes=resolved.nodes)


def _resume_on(run: TargetRun, nodes: int | None) -> None:
    """A stopped run as it was."""
    from headway.cli.waiting import wait_until_it_trains

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
    wait_until_it_trains(run, is_new=False)
