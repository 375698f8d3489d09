"""What `checkpoint.every: auto` is for a run that is resolved, here or on a target."""

from __future__ import annotations

from headway.plan.interruptions import (
    LossRates,
    Placement,
    node_rates,
    placement,
    rewinds_per_hour,
)
from headway.plan.save_interval import SaveInterval, chosen_interval, save_cost
from headway.plan.workload import layout_of
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
    cost = None
    if parameters is not None:
        cost = save_cost(
            parameters,
            writers=place.writers,
            nodes=place.copy_nodes,
            on_gpu=place.on_gpu,
            is_remote=on_pods or "://" in resolved.run_directory,
        )
    return chosen_interval(cost, rewinds_per_hour(place, rates))


def placement_of(resolved: Resolved, *, on_pods: bool) -> Placement:
    return placement(
        resolved.run,
        layout_of(resolved),
        nodes=resolved.nodes,
        ranks_per_node=resolved.ranks_per_node,
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
