"""headway run --warm: compiles on a target what the run will need, so that none of its pods has
to."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from headway.cli.delete import delete_on, deletion_on
from headway.cli.output import compiled_text, hint, say
from headway.cli.target_launch import launched, wait_for_end
from headway.cli.target_render import target_plan
from headway.cli.target_run import TargetRun, bucket_of, end_claim_pods
from headway.errors import BadInput, NotFound, RunFailed
from headway.launch.compile_cache import NUM_STEPS
from headway.launch.training_wait import status_when_training
from headway.spec.load import load_run, load_target
from headway.spec.resolve import run_name
from headway.state.status import newest_event

if TYPE_CHECKING:
    from headway.spec.load import Loaded
    from headway.spec.resolve import Resolved

END_SECONDS = 3600.0
"""From the first step to the end: nine more steps, an evaluation and a checkpoint."""
MOST_NAME = 35
"""Characters of the run's name that are left for this one."""


def warm_on(
    loaded: Loaded,
    run_file: str | None,
    overrides: list[str],
    on: str | None,
    nodes: int | None,
    extend: bool,
) -> None:
    """`nodes`: of the run that is to find its code compiled."""
    if extend:
        raise BadInput(
            "--extend does nothing with --warm: ten steps compile what a run of any length needs"
        )
    if on is None:
        raise BadInput(
            "--warm needs --on: on this machine torch keeps what it compiled in a folder of its own"
        )
    if not loaded.run.memory.compile:
        raise BadInput("--warm has nothing to do: memory.compile is off", "headway run --on " + on)
    found = load_target(on, loaded.folder)
    if found.target.compile_cache == "off":
        raise BadInput(f"{found.mark(('compile_cache',))}: it is off, so nothing would be kept")
    resolved = target_plan(loaded, found, nodes).resolved
    name = f"{run_name(loaded)[:MOST_NAME].rstrip('-')}-warm"
    short = load_run(run_file, [*overrides, f"name={name}", *shortening(resolved)])
    run = TargetRun(name, on, found.target, loaded.folder, bucket_of(short))
    _require_none(run)
    new = launched(short, on, None, extend=False)
    assert new is not None, "there was none before"
    wait_and_delete(new)


def wait_and_delete(run: TargetRun) -> None:
    try:
        status_when_training(run.cluster, say)
        # Its pods end when what they have compiled is on the storage.
        wait_for_end(run, run.cluster.clock.monotonic() + END_SECONDS)
    except KeyboardInterrupt:
        say(f"no longer waiting; run {run.name} continues on {run.on}")
        hint(f"when it has finished: headway delete {run.name} --on {run.on}")
        raise typer.Exit(130) from None
    except RunFailed as error:
        left = _left(run)
        raise RunFailed(error.message, f"{error.hint}; {left}" if error.hint else left) from None
    counted = newest_event(run.directory().history(), "compiled")
    deletion_on(run).delete()
    end_claim_pods()
    if counted is not None:
        say(f"warm: {compiled_text(counted)}")


def _left(run: TargetRun) -> str:
    """What is left of one that failed. One that has ended stays, for its logs; one that has not
    would wait for machines, or hold them, and is deleted."""
    job = run.cluster.job()
    if job is None or not run.cluster.job_status(job).is_under_way:
        logs, delete = (f"headway {one} {run.name} --on {run.on}" for one in ("logs", "delete"))
        return f"{logs}; then {delete}"
    delete_on(run)
    end_claim_pods()
    return f"run {run.name} is deleted; nothing was compiled"


def _require_none(run: TargetRun) -> None:
    """It may be one of the user's own."""
    with suppress(NotFound):
        deletion_on(run)
        raise BadInput(
            f"there is a run {run.name} on {run.on} already, which --warm would have to delete",
            f"if nobody needs it: headway delete {run.name} --on {run.on}",
        )


def shortening(resolved: Resolved) -> list[str]:
    """Settings that make the run short, and leave its graphs as they are: one copy of the model,
    one micro-batch a worker and step."""
    nodes = {None: 1, 0: resolved.nodes}.get(resolved.copy_nodes, resolved.copy_nodes)
    assert nodes is not None
    workers = nodes * resolved.ranks_per_node
    return [
        f"train_for={NUM_STEPS} steps",
        f"evaluation.every={NUM_STEPS} steps",
        f"evaluation.sequences={workers * resolved.micro}",
        "evaluation.prompts=[]",
        f"batch={{global: {workers * resolved.micro}, micro: {resolved.micro}}}",
        f"resources.nodes={nodes}",
        # A smaller batch needs less memory, and might be sharded over fewer nodes.
        *([] if resolved.shard_nodes is None else [f"shard={resolved.shard}"]),
        "track=[]",
    ]
