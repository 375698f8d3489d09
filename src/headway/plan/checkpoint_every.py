"""What `checkpoint.every: auto` is for a run that is resolved, here or on a target."""

from __future__ import annotations

from headway.plan.figure import Figure
from headway.plan.interruptions import Placement, losses_per_hour, placement, rewinds_per_hour
from headway.plan.save_interval import chosen_interval, save_cost
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
    seconds = auto_interval(resolved, parameters, interruptions).value
    every = SteppedInterval((), Interval(round(seconds), "seconds"))
    return resolved.model_copy(update={"checkpoint_every": every})


def auto_interval(
    resolved: Resolved, parameters: int | None, interruptions: InterruptionsConfig | None = None
) -> Figure:
    """Seconds between two checkpoints."""
    on_pods = interruptions is not None
    place = placement_of(resolved, on_pods=on_pods)
    is_remote = on_pods or "://" in resolved.run_directory
    cost = None if parameters is None else save_cost(parameters, place, is_remote=is_remote)
    return chosen_interval(cost, rewinds_per_hour(place, losses_per_hour(place, interruptions)))


def placement_of(resolved: Resolved, *, on_pods: bool) -> Placement:
    return placement(
        resolved.run,
        layout_of(resolved),
        nodes=resolved.nodes,
        ranks_per_node=resolved.ranks_per_node,
        on_gpu=resolved.device != "cpu",
        on_pods=on_pods,
    )
