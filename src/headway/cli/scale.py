"""headway scale: more or fewer nodes for a run that goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import OnOption, RunArgument
from headway.cli.output import say


def scale(
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="How many there shall be.")],
    run: RunArgument = None,
    on: OnOption = None,
) -> None:
    """Change the number of nodes of a run that goes on. Nobody else is restarted."""
    from headway.cli.target_run import target_run
    from headway.errors import BadInput, NotFound
    from headway.state.find import find_run

    wanted = "1 node" if nodes == 1 else f"{nodes} nodes"
    if (there := target_run(run, on, Path.cwd())) is not None:
        there.require_scalable(nodes)
        before = there.cluster.scale(nodes)
        say(f"asked for {wanted} instead of {before}; headway status shows when it has them")
        return
    directory = find_run(run, Path.cwd())
    if not directory.is_running():
        raise NotFound(
            f"run {directory.name} does not go on here",
            f"headway resume {directory.name} --nodes {nodes}",
        )
    if not directory.read_spec().is_live:
        raise BadInput(
            f"run {directory.name} has one node, or starts again when its nodes change",
            f"headway stop {directory.name} && headway resume {directory.name} --nodes {nodes}; or "
            "begin with elastic: live in run.yaml",
        )
    directory.want_nodes(nodes)
    say(f"asked run {directory.name} for {wanted}; headway status shows when it has")
