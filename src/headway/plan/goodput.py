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
    placement,
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
    place = placement(
        run,
        layout,
        nodes=fleet.nodes,
        ranks_per_node=fleet.devices_per_node,
        on_gpu=fleet.device is not None,
        on_pods=on_pods,
    )
    given = interruptions or InterruptionsConfig()
    rates = node_rates(
        fleet.devices_per_node,
        on_gpu=place.on_gpu,
        spot=given.spot.per_hour if given.spot is not None else None,
        on_demand=given.on_demand.per_hour if given.on_demand is not None else None,
    )
    cost = save_cost(
        workload.model.size.parameters,
        writers=place.writers,
        nodes=place.copy_nodes,
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


def _evaluation_share(run: RunFile, workload: Workload) -> float:
    """Of all validation sets; those that are evaluated whole are taken for as large as a sample."""
    most = run.evaluation.sequences
    sequences = 512 if most == "all" else most
    sets = len(run.data.validation)
    return evaluation_share(
        sets * sequences, int(run.evaluation.every.amount), workload.global_batch
    )
