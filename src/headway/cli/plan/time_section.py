"""Time of a step, and what it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.cli.plan.figure_text import PlanEntry, PlanSection, Unit

if TYPE_CHECKING:
    from headway.plan.step_time import StepTime

IDLE = "idle devices"
HIDDEN = "hidden communication"
LEAST_SHARE = 0.02
"""A part of a step that takes less is not named on the screen."""


def time_section(step: StepTime) -> PlanSection:
    passes = f"{step.num_passes} pass{'es' if step.num_passes > 1 else ''} on each device"
    entries = [
        PlanEntry("step_seconds", "a step", step.seconds, "seconds", passes),
        *_parts(step),
        PlanEntry("tokens_per_second", "tokens a second", step.tokens_per_second, "count"),
    ]
    if step.mfu is not None:
        entries.append(PlanEntry("mfu", "MFU", step.mfu, "share", "model FLOPs over the peak"))
    return PlanSection("time", "Time", tuple(entries), _words(step))


def _parts(step: StepTime) -> list[PlanEntry]:
    found = []
    for name, figure in step.parts.items():
        unit: Unit = "share" if name == IDLE else "seconds"
        key = f"{name.replace(' ', '_')}_{unit}"
        found.append(PlanEntry(key, name, figure, unit, is_detail=True))
    return found


def _words(step: StepTime) -> str:
    """The largest parts of a step, by share."""
    parts = {name: one for name, one in step.parts.items() if name not in (IDLE, HIDDEN)}
    total = step.seconds.value
    named = [
        f"{name} {one.value / total:.0%}"
        for name, one in parts.items()
        if one.value / total >= LEAST_SHARE
    ]
    return f"of a step: {', '.join(named)}" if named else ""
