"""headway scale: more or fewer nodes for a running run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import OnOption, RunArgument
from headway.cli.output import say


def scale(
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of nodes.")],
    run: RunArgument = None,
    on: OnOption = None,
) -> None:
    """Change the number of nodes of a running run. With elastic: restart, all workers save and
    restart."""
    from headway.cli.target_run import target_run
    from headway.errors import BadInput, NotFound
    from headway.kube.coordinator_set import fewest_nodes
    from headway.spec.resolve import copies_problem, whole_copies
    from headway.state.find_run import find_run
    from headway.state.status import other_launcher

    wanted = "1 node" if nodes == 1 else f"{nodes} nodes"
    if (there := target_run(run, on, Path.cwd())) is not None:
        there.require_same_version()
        there.require_scalable(nodes)
        before = there.cluster.scale(nodes)
        say(f"scaling from {before} to {wanted}; headway status shows when it is done")
        return
    directory = find_run(run, Path.cwd())
    if not directory.is_running():
        raise NotFound(
            f"run {directory.name} is not running on this machine",
            f"headway resume {directory.name} --nodes {nodes}",
        )
    if (other := other_launcher(directory)) is not None:
        raise BadInput(
            f"run {directory.name} was started by {other}, which decides how many workers it has",
            f"headway stop {directory.name}, then start it with another number",
        )
    resolved = directory.read_spec()
    if problem := copies_problem(resolved.shard, nodes):
        fewer = whole_copies(resolved.shard, nodes)
        raise BadInput(problem, f"headway scale {directory.name} --nodes {fewer}")
    if not resolved.has_coordinator:
        raise BadInput(
            f"run {directory.name} cannot change its nodes while it is running: it was started "
            "with one node that is not elastic: live",
            f"headway stop {directory.name} && headway resume {directory.name} --nodes {nodes}",
        )
    if resolved.is_script and nodes < (fewest := fewest_nodes(resolved)):
        raise BadInput(
            f"run {directory.name} does not run on fewer than {fewest} nodes: resources.nodes is "
            f"{resolved.run.resources.nodes}",
            f"headway stop {directory.name}, or headway scale {directory.name} --nodes {fewest}",
        )
    directory.want_nodes(nodes)
    say(f"scaling {directory.name} to {wanted}; headway status shows when it is done")
