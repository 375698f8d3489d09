"""How long a run takes with its interruptions, saves and evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.cli.plan.figure_text import PlanEntry, PlanSection
from headway.plan.figure import Figure, combined
from headway.plan.goodput import GoodputPlan, goodput_plan

if TYPE_CHECKING:
    from headway.cli.plan.asked import Asked
    from headway.plan.fleet import Fleet
    from headway.plan.workload import Layout, Workload

LEAST_GOODPUT = 0.001
"""A run that is interrupted more often than it can save never ends; a thousand times as long is
answer enough."""
LEAST_GAIN = 0.005
"""Of all time: what another interval of checkpoints has to gain to be named."""


@dataclass(frozen=True)
class RunTime:
    """A run from its launch to its end."""

    seconds: Figure
    section: PlanSection
    change: tuple[str, str] | None
    """Options of an interval of checkpoints that loses less, and what they gain."""


def run_time(
    asked: Asked, workload: Workload, fleet: Fleet, layout: Layout, step: Figure
) -> RunTime | None:
    """None if only the data determines the number of steps."""
    if workload.steps is None:
        return None
    found = _goodput(asked, workload, fleet, layout, step)
    seconds = _seconds(workload.steps, step, found.goodput)
    alone = step.times(workload.steps, f"{workload.steps:,} steps of {step.value:.3g} s, none lost")
    change = None
    if asked.run.checkpoint.every != "auto":
        run = asked.run
        every = run.checkpoint.model_copy(update={"every": "auto"})
        auto = asked.with_run(run.model_copy(update={"checkpoint": every}))
        better = _goodput(auto, workload, fleet, layout, step)
        if better.goodput.value - found.goodput.value >= LEAST_GAIN:
            effect = f"every {better.interval.value:.0f} s, goodput {better.goodput.value:.1%}"
            change = ("--set checkpoint.every=auto", effect)
    return RunTime(seconds, _section(found, alone, seconds), change)


def _goodput(
    asked: Asked, workload: Workload, fleet: Fleet, layout: Layout, step: Figure
) -> GoodputPlan:
    target = asked.place.target
    return goodput_plan(
        asked.run,
        workload,
        fleet,
        layout,
        step,
        target.target.interruptions if target is not None else None,
        on_pods=not asked.place.is_here,
    )


def _seconds(steps: int, step: Figure, goodput: Figure) -> Figure:
    return combined(
        lambda step, goodput: steps * step / max(LEAST_GOODPUT, goodput),
        {"step": step, "goodput": goodput},
        f"{steps:,} steps of {step.value:.3g} s, over a goodput of {goodput.value:.1%}",
    )


def _section(found: GoodputPlan, alone: Figure, seconds: Figure) -> PlanSection:
    kind = "a restart" if found.place.mode == "restart" else "the others continue"
    losses, hours = found.losses_per_hour, seconds.value / 3600
    number = losses.times(hours, f"in {hours:.3g} h: {losses.reason}")
    entries = (
        PlanEntry("training_seconds", "steps alone", alone, "seconds"),
        PlanEntry("interruptions", "interruptions", number, "number", f"each: {kind}"),
        PlanEntry("interruptions_per_hour", "of them an hour", losses, "rate", is_detail=True),
        PlanEntry("checkpoint_every_seconds", "checkpoint every", found.interval, "seconds"),
        PlanEntry("goodput", "goodput", found.goodput, "share", "time in steps that count"),
        PlanEntry("run_seconds", "from start to end", seconds, "seconds"),
    )
    return PlanSection("interruptions", "Interruptions", entries)
