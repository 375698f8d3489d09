"""What `checkpoint.every: auto` is for a run that is resolved, here or on a target."""

from __future__ import annotations

from headway.plan.interruptions import (
    LossRates,
    Placement,
    node_rates,
    rewinds_per_hour,
)
from headway.plan.save_interval import SaveCost, SaveInterval, chosen_interval, save_cost
from headway.spec.interruption_rate import InterruptionsConfig
from headway.spec.quantities import Interval
from headway.spec.resolve import Resolved
from headway.spec.stepped_interval import SteppedInterval


def with_checkpoint_interval(
    resolved: Resolved, parameters: int | None, interruptions: InterruptionsConfig | None = None
) -> Resolved:
    """The run with `checkpoint.every: auto` decided. `parameters`: the model's size, if known.
    `interruptions`: the target's; None: the run is on this machine."""
    if resolved.is_script or resolved.run.checkpoint.every != "auto":
        return resolved
    chosen = auto_interval(resolved, parameters, interruptions)
    every = SteppedInterval((), Interval(round(chosen.seconds), "seconds"))
    return resolved.model_copy(update={"checkpoint_every": every})


def auto_interval(
    resolved: Resolved, parameters: int | None, interruptions: InterruptionsConfig | None = None
) -> SaveInterval:
    on_pods = interruptions is not None
    place, rates = placement_of(resolved, on_pods=on_pods), rates_of(resolved, interruptions)
    cost = None if parameters is None else save_cost_of(resolved, parameters, on_pods=on_pods)
    return chosen_interval(cost, rewinds_per_hour(place, rates))


def placement_of(resolved: Resolved, *, on_pods: bool) -> Placement:
    wanted, nodes = resolved.run.resources, resolved.nodes
    on_demand = wanted.on_demand_nodes
    copies = max(1, resolved.num_workers // resolved.domain_ranks)
    copy_nodes = resolved.copy_nodes or 1  # 0, of `shard: all`: any number of nodes holds a copy
    is_range = wanted.nodes.minimum < wanted.nodes.maximum
    least = max(copy_nodes, wanted.nodes.minimum if is_range else 1)
    return Placement(
        mode="live" if resolved.is_live else "restart",
        nodes=nodes,
        spot_nodes=max(0, nodes - on_demand) if on_pods and on_demand is not None else 0,
        copies=copies if resolved.is_live else 1,
        trains_with_fewer=nodes > least,
        on_gpu=resolved.device != "cpu",
        on_pods=on_pods,
    )


def rates_of(resolved: Resolved, interruptions: InterruptionsConfig | None) -> LossRates:
    given = interruptions or InterruptionsConfig()
    return node_rates(
        resolved.ranks_per_node,
        on_gpu=resolved.device != "cpu",
        spot=given.spot.per_hour if given.spot is not None else None,
        on_demand=given.on_demand.per_hour if given.on_demand is not None else None,
    )


def save_cost_of(resolved: Resolved, parameters: int, *, on_pods: bool) -> SaveCost:
    """The workers of the first domain write a checkpoint together."""
    is_one_copy = resolved.copy_nodes == 0
    return save_cost(
        parameters,
        writers=resolved.num_workers if is_one_copy else resolved.domain_ranks,
        nodes=resolved.nodes if is_one_copy else resolved.copy_nodes or 1,
        on_gpu=resolved.device != "cpu",
        is_remote=on_pods or "://" in resolved.run_directory,
    )
