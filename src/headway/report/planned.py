"""What a run has measured so far, for a comparison with the plan that it was started with."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from headway.plan.outcome import PLAN, Measured, PlanRecord
from headway.state.goodput import goodput
from headway.state.interruptions import pauses
from headway.state.rewinds import Record, apply_rewinds
from headway.state.run_directory import RunDirectory
from headway.state.spent_money import spending_of
from headway.state.status import newest_event
from headway.state.time_left import WARMUP_STEPS, seconds_left


def kept_plan(directory: RunDirectory) -> PlanRecord | None:
    """None if there is none, or if a later version wrote it."""
    try:
        return PlanRecord.from_text(directory.store.read(PLAN))
    except FileNotFoundError:
        return None


def measured_so_far(directory: RunDirectory) -> Measured:
    """Reads the run's logs."""
    resolved = directory.read_spec()
    events, taken = directory.history(), directory.metrics.read()[0]
    steps = apply_rewinds(taken)
    started = newest_event(events, "started")
    recent = seconds_of_steps(steps, started["time"]) if started else []
    settled = recent[WARMUP_STEPS:] or recent
    found = goodput(events, taken)
    peaks = [event["device_peak_bytes"] for event in events if "device_peak_bytes" in event]
    spending = spending_of(events, None)
    return Measured(
        steps=len(steps),
        total_steps=started["total_steps"] if started else None,
        tokens_per_step=resolved.tokens_per_step,
        step_seconds=statistics.median(settled) if settled else None,
        goodput=found.ratio if found is not None else None,
        lost_seconds=found.lost_seconds if found is not None else {},
        spent_seconds=found.total_seconds if found is not None else 0.0,
        left_seconds=seconds_left(steps, events),
        interruptions=sum(one.is_interruption for one in pauses(events, taken)),
        memory_bytes=max(peaks, default=None),
        usd=spending.usd if spending is not None else None,
    )


def seconds_of_steps(steps: Sequence[Record], since: str) -> list[float]:
    """Return how long each step took that was committed at this time or later."""
    return [step["seconds"] for step in steps if step["time"] >= since]
