"""What interruptions, saves and evaluations make of the time of the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.cli.plan.figure_text import PlanEntry, PlanSection
from headway.plan.figure import Figure, combined
from headway.plan.goodput import GoodputPlan, goodput_plan

if TYPE_CHECKING:
    from headway.cli.plan.asked import Asked
    from headway.plan.fleet import Fleet
    from headway.plan.interruptions import ExpectedGoodput
    from headway.plan.workload import Layout, Workload

LEAST_GOODPUT = 0.001
"""A run that is interrupted more often than it can save never ends; a thousand times as long is
answer enough."""
CAUSE_SHARE = 0.001
"""Of all time: a cause that takes less is not named on the screen."""
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
    found = _goodput(asked, workload, fleet, layout, step)
    if workload.steps is None or found.expected is None:
        return None
    seconds = _seconds(workload.steps, step, found.expected)
    alone = step.times(workload.steps, f"{workload.steps:,} steps of {step.value:.3g} s, none lost")
    section = _section(found, found.expected, alone, seconds)
    change = None
    if asked.run.checkpoint.every != "auto":
        run = asked.run
        every = run.checkpoint.model_copy(update={"every": "auto"})
        auto = asked.with_run(run.model_copy(update={"checkpoint": every}))
        better = _goodput(auto, workload, fleet, layout, step).expected
        assert better is not None
        gain = better.goodput.value - found.expected.goodput.value
        if gain >= LEAST_GAIN:
            effect = f"every {found.best.seconds:.0f} s, goodput {better.goodput.value:.1%}"
            change = ("--set checkpoint.every=auto", effect)
    return RunTime(seconds, section, change)


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


def _seconds(steps: int, step: Figure, expected: ExpectedGoodput) -> Figure:
    fewer = expected.capacity.value < 1
    return combined(
        lambda step, goodput, capacity: steps * step / max(LEAST_GOODPUT, goodput * capacity),
        {"step": step, "goodput": expected.goodput, "capacity": expected.capacity},
        f"{steps:,} steps of {step.value:.3g} s, over a goodput of {expected.goodput.value:.1%}"
        + (f" with {expected.capacity.value:.1%} of the nodes on average" if fewer else ""),
    )


def _section(
    found: GoodputPlan, expected: ExpectedGoodput, alone: Figure, seconds: Figure
) -> PlanSection:
    kind = "the others continue" if found.place.mode == "live" else "a restart"
    entries = [
        PlanEntry("training_seconds", "steps alone", alone, "seconds"),
        PlanEntry(
            "interruptions", "interruptions", expected.interruptions, "number", f"each: {kind}"
        ),
        PlanEntry(
            "interruptions_per_hour",
            "of them an hour",
            expected.interruptions_per_hour,
            "rate",
            is_detail=True,
        ),
        PlanEntry("checkpoint_every_seconds", "checkpoint every", found.interval.figure, "seconds"),
        PlanEntry(
            "save_held_seconds", "a save holds", found.cost.held_seconds, "seconds", is_detail=True
        ),
        PlanEntry(
            "save_write_seconds", "and writes", found.cost.write_seconds, "seconds", is_detail=True
        ),
        PlanEntry("goodput", "goodput", expected.goodput, "share", "time in steps that count"),
        PlanEntry("capacity", "nodes there", expected.capacity, "share", is_detail=True),
        PlanEntry("run_seconds", "from start to end", seconds, "seconds"),
    ]
    lost = sorted(expected.lost_seconds.items(), key=lambda pair: -pair[1])
    shares = {cause: min(1.0, each / seconds.value) for cause, each in lost}
    named = [f"{cause} {share:.1%}" for cause, share in shares.items() if share >= CAUSE_SHARE]
    words = f"lost: {', '.join(named)}" if named else ""
    return PlanSection("interruptions", "Interruptions", tuple(entries), words)
