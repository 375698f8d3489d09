"""Goodput of a planned run, as `status` counts it: what losses and saves leave of its time.

A loss costs the time that was measured in this project (bench/results), on CPUs; what a GPU adds
is assumed. Where the run goes back to a checkpoint, Daly's equation counts the steps that are done
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headway.plan.figure import Figure, combined
from headway.plan.fleet import Fleet
from headway.plan.interruptions import (
    Mode,
    Placement,
    losses_per_hour,
    placement,
    rewinds_per_hour,
)
from headway.plan.save_interval import (
    SaveCost,
    chosen_interval,
    expected_stretch,
    save_cost,
    seconds_text,
)
from headway.plan.workload import Layout, Workload
from headway.spec.interruption_rate import InterruptionsConfig
from headway.spec.run_file import RunFile


def _measured(value: float, low: float, high: float, source: str) -> Figure:
    return Figure(value, low, high, "measured", source)


LOSS_SECONDS: Mapping[tuple[Mode, bool], Figure] = {
    ("live", True): _measured(
        *(0.85, 0.4, 1.3),
        "0.7 s until the others continue (bench-plugs, 2026-11-17, cf79769), 0.15 s when the "
        "replacement joins (bench-losses, 2026-11-15, 34a975b)",
    ),
    ("restart", True): _measured(
        *(3.0, 2.1, 13.8),
        "1.5 s until the others continue, as much when the replacement joins (tests/cluster, "
        "2026-11-17, daad0ac)",
    ),
    ("live", False): _measured(
        *(0.23, 0.15, 1.3),
        "0.08 s until the others continue, 0.15 s when the replacement joins (bench-losses, "
        "2026-11-15, 34a975b)",
    ),
    ("restart", False): _measured(0.58, 0.3, 1.2, "bench-restart, 2026-11-17, 2042e60"),
}
"""Without steps after a loss, beside the step in flight, by mode and whether nodes are pods."""
ALONE_SECONDS: Mapping[bool, Figure] = {
    True: Figure(
        326.0,
        46.0,
        940.0,
        "assumed",
        "26 s (tests/cluster, 2026-11-17, daad0ac) on another machine, which is assumed to be "
        "there after 5 min",
    ),
    False: _measured(0.9, 0.8, 1.4, "bench-losses, 2026-11-15"),
}
"""The same if the other nodes are too few to continue, by whether nodes are pods."""
START_SECONDS: Mapping[bool, Figure] = {
    True: _measured(10.9, 9.6, 19.1, "cluster-storm, 2026-11-16, d050688"),
    False: _measured(5.8, 5.5, 15.0, "bench-goodput, 2026-11-15, bb0738e"),
}
"""From the launch to the first step, by whether nodes are pods."""
GPU_START_SECONDS = Figure(
    30.0, 5.0, 90.0, "assumed", "30 s for CUDA, NCCL and first steps: never measured here"
)
NO_GPU = Figure.exact(0.0, "on CPUs")
OTHER_SHARE = _measured(
    0.010,
    0.005,
    0.02,
    "1 % for data and between steps (bench-goodput, 2026-11-15; cluster-storm, 2026-11-16)",
)
NEVER = 1e-9
"""Losses an hour that stand for none."""
MOMENT = 1e-6
"""Share of the time between two losses that is a moment beside it."""
SAMPLED_SEQUENCES = 512
"""Sequences of a validation set that is evaluated whole: how many it has is not known."""


@dataclass(frozen=True)
class GoodputPlan:
    place: Placement
    losses_per_hour: Figure
    interval: Figure
    """Seconds between two checkpoints: as the run file says, or what `auto` takes."""
    goodput: Figure


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
    """`workload`: with its number of steps. `interruptions`: the target's. `on_pods`: False for a
    run on this machine, whose nodes are processes."""
    assert workload.steps is not None
    place = placement(
        run,
        layout,
        nodes=fleet.nodes,
        ranks_per_node=fleet.devices_per_node,
        on_gpu=fleet.device is not None,
        on_pods=on_pods,
    )
    losses = losses_per_hour(place, interruptions)
    is_remote = on_pods or "://" in run.storage
    save = save_cost(workload.model.size.parameters, place, is_remote=is_remote)
    if run.checkpoint.every == "auto":
        interval = chosen_interval(save, rewinds_per_hour(place, losses))
    else:
        rest = run.checkpoint.every.rest
        seconds = rest.amount * (step_seconds.value if rest.unit == "steps" else 1.0)
        interval = Figure.exact(seconds, f"checkpoint.every: {run.checkpoint.every}", "given")
    times = RunTimes(
        training_seconds=workload.steps * step_seconds.value,
        step_seconds=step_seconds.value,
        save_every_seconds=max(interval.value, save.write_seconds.value, step_seconds.value),
        save=save,
        evaluation_share=_evaluation_share(run, workload),
    )
    return GoodputPlan(place, losses, interval, expected_goodput(place, losses, times))


@dataclass(frozen=True)
class RunTimes:
    """What a goodput is made of besides losses."""

    training_seconds: float
    """All steps together, undisturbed."""
    step_seconds: float
    save_every_seconds: float
    save: SaveCost
    evaluation_share: float = 0.0
    """Time of evaluations, over that of steps."""


def expected_goodput(place: Placement, losses: Figure, times: RunTimes) -> Figure:
    """Return the time of steps that count over all time. `losses`: an hour, of the whole run."""
    every, has_others = times.save_every_seconds, place.trains_with_fewer
    loss = LOSS_SECONDS[place.mode, place.on_pods] if has_others else ALONE_SECONDS[place.on_pods]
    # On pods all restart again when the replacement joins. Here it is back with the others.
    restarts = 2 if has_others and place.on_pods else 1
    inputs = {
        "losses": losses,
        "loss": loss,
        "gpu": GPU_START_SECONDS if place.on_gpu else NO_GPU,
        "start": START_SECONDS[place.on_pods],
        "held": times.save.held_seconds,
        "write": times.save.write_seconds,
        "other": OTHER_SHARE,
    }

    def cost_of_loss(loss: float, gpu: float, write: float) -> float:
        if not place.rewinds:
            return loss + times.step_seconds / 2  # of the step in flight, which is discarded
        # A checkpoint is read at each restart, and counts only once it is written.
        return loss + restarts * (gpu + 2 * write)

    def goodput(
        losses: float,
        loss: float,
        gpu: float,
        start: float,
        held: float,
        write: float,
        other: float,
    ) -> float:
        mean = 3600 / max(losses, NEVER)
        # Where no step is done again, it is as if every moment were saved.
        redone = every if place.rewinds else mean * MOMENT
        saving = redone * held / every
        stretch = expected_stretch(redone, saving, mean, cost_of_loss(loss, gpu, write))
        busy = times.training_seconds * (1 + times.evaluation_share) / (1 - other)
        return times.training_seconds / (start + gpu + busy * stretch)

    found = combined(goodput, inputs, "")
    cost = cost_of_loss(loss.value, inputs["gpu"].value, inputs["write"].value)
    again = f" and half of {seconds_text(every)} of steps" if place.rewinds else ""
    return replace(
        found,
        low=max(0.0, found.low),
        high=min(1.0, found.high),
        reason=f"{place.mode}: a loss costs {seconds_text(cost)}{again} ({loss.reason}); a save "
        f"holds training for {seconds_text(times.save.held_seconds.value)}; {OTHER_SHARE.reason}; "
        f"{losses.reason}",
    )


def _evaluation_share(run: RunFile, workload: Workload) -> float:
    """Return the time of evaluations over that of steps: a forward pass is a third of a step."""
    most = run.evaluation.sequences
    sequences = SAMPLED_SEQUENCES if most == "all" else most
    sets, every = len(run.data.validation), int(run.evaluation.every.amount)
    return sets * sequences / 3 / (every * workload.global_batch)
