"""Saves, interruptions and goodput of a planned run, from its workload, fleet and layout."""

from __future__ import annotations

from dataclasses import dataclass

from headway.plan.figure import Figure
from headway.plan.fleet import Fleet
from headway.plan.interruptions import (
    ExpectedGoodput,
    Placement,
    RunTimes,
    evaluation_share,
    expected_goodput,
    node_rates,
    rewinds_per_hour,
)
from headway.plan.save_interval import SaveCost, SaveInterval, chosen_interval, save_cost
from headway.plan.workload import Layout, Workload
from headway.spec.interruption_rate import InterruptionsConfig
from headway.spec.run_file import RunFile


@dataclass(frozen=True)
class GoodputPlan:
    place: Placement
    cost: SaveCost
    """Of a checkpoint."""
    interval: SaveInterval
    """Between two checkpoints: as the run file says, or what `auto` takes."""
    best: SaveInterval
    """What `auto` would take."""
    expected: ExpectedGoodput | None
    """None if the number of steps is not known."""


def goodput_plan(
    run: RunFile,
    workload: Workload,
    fleet: Fleet,
    layout: Layout,
    step_seconds: Figure,
    interruptions: InterruptionsConfig | None = None,
    *,
    on_pods: bool = True,
) -> GoodputPlan:
    """`interruptions`: the target's. `on_pods`: False for a run on this machine, whose nodes are
    processes."""
    place = planned_placement(run, fleet, layout, on_pods=on_pods)
    given = interruptions or InterruptionsConfig()
    rates = node_rates(
        fleet.devices_per_node,
        on_gpu=place.on_gpu,
        spot=given.spot.per_hour if given.spot is not None else None,
        on_demand=given.on_demand.per_hour if given.on_demand is not None else None,
    )
    writers = max(layout.shard_devices, fleet.devices_per_node if place.mode == "restart" else 1)
    cost = save_cost(
        workload.model.size.parameters,
        writers=min(writers, fleet.num_devices),
        nodes=-(-layout.shard_devices // fleet.devices_per_node),
        on_gpu=place.on_gpu,
        is_remote=on_pods or "://" in run.storage,
    )
    best = chosen_interval(cost, rewinds_per_hour(place, rates))
    interval = best
    if run.checkpoint.every != "auto":
        rest = run.checkpoint.every.rest
        each = step_seconds.value if rest.unit == "steps" else 1.0
        reason = f"checkpoint.every: {run.checkpoint.every}"
        interval = SaveInterval(
            rest.amount * each, Figure.exact(rest.amount * each, reason, "given")
        )
    expected = None
    if workload.steps is not None:
        times = RunTimes(
            training_seconds=workload.steps * step_seconds.value,
            step_seconds=step_seconds.value,
            save_every_seconds=max(interval.seconds, cost.write_seconds.value, step_seconds.value),
            save_held_seconds=cost.held_seconds,
            save_write_seconds=cost.write_seconds,
            load_seconds=cost.load_seconds,
            evaluation_share=_evaluation_share(run, workload),
        )
        expected = expected_goodput(place, rates, times)
    return GoodputPlan(place, cost, interval, best, expected)


def planned_placement(run: RunFile, fleet: Fleet, layout: Layout, *, on_pods: bool) -> Placement:
    """As `checkpoint_every.placement_of` finds it for a run that is resolved."""
    on_gpu = fleet.device is not None
    devices, ranks = fleet.num_devices, fleet.devices_per_node
    copies = max(1, devices // layout.shard_devices)
    is_wide = run.shard.is_wide or layout.shard_devices > ranks
    is_live = not is_wide and not on_gpu and run.command is None
    if run.elastic == "auto":
        is_live = is_live and (copies > 1 or on_pods)
    else:
        is_live = is_live and run.elastic == "live"
    # With `shard: all` any number of nodes holds a copy.
    copy_nodes = 1 if run.shard.num_nodes == 0 else -(-layout.shard_devices // ranks)
    wanted = run.resources.nodes
    least = max(copy_nodes, wanted.minimum if wanted.minimum < wanted.maximum else 1)
    return Placement(
        mode="live" if is_live else "restart",
        nodes=fleet.nodes,
        spot_nodes=fleet.spot_nodes if on_pods else 0,
        copies=copies if is_live else 1,
        trains_with_fewer=fleet.nodes > least,
        on_gpu=on_gpu,
        on_pods=on_pods,
    )


def _evaluation_share(run: RunFile, workload: Workload) -> float:
    """Of all validation sets; those that are evaluated whole are taken for as large as a sample."""
    most = run.evaluation.sequences
    sequences = 512 if most == "all" else most
    sets = len(run.data.validation)
    return evaluation_share(
        sets * sequences, int(run.evaluation.every.amount), workload.global_batch
    )
