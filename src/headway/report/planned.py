"""What a run has measured so far, for a comparison with the plan that it was started with."""

from __future__ import annotations

import statistics

from headway.clock import seconds_of
from headway.plan.outcome import PLAN, Measured, PlanRecord
from headway.state.goodput import goodput
from headway.state.interruptions import pauses
from headway.state.rewinds import apply_rewinds
from headway.state.run_directory import RunDirectory
from headway.state.spent_money import spending_of
from headway.state.status import newest_event

WARMUP_STEPS = 3
"""Steps after a start that compile, fill caches and allocate."""
STARTING = ("start", "import", "build", "load")


def kept_plan(directory: RunDirectory) -> PlanRecord | None:
    """None for a run of an earlier version, or if a later one wrote it."""
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
    since = seconds_of(started["time"]) if started else 0.0
    recent = [step["seconds"] for step in steps if seconds_of(step["time"]) >= since]
    settled = recent[WARMUP_STEPS:] or recent
    found = goodput(events, taken)
    lost = found.lost_seconds if found is not None else {}
    starting = sum(lost.get(cause, 0.0) for cause in STARTING)
    total = found.total_seconds if found is not None else 0.0
    peaks = [event["device_peak_bytes"] for event in events if "device_peak_bytes" in event]
    spending = spending_of(events, None)
    return Measured(
        steps=len(steps),
        total_steps=started["total_steps"] if started else None,
        tokens_per_step=resolved.tokens_per_step,
        step_seconds=statistics.median(settled) if settled else None,
        goodput=found.ratio if found is not None else None,
        goodput_after_start=found.learning_seconds / (total - starting)
        if found is not None and total > starting
        else None,
        lost_seconds=lost,
        spent_seconds=total,
        interruptions=sum(one.is_interruption for one in pauses(events, taken)),
        memory_bytes=max(peaks, default=None),
        usd=spending.usd if spending is not None else None,
    )
