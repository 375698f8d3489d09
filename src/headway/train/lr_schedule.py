"""The learning rate of a step: a pure function, so resuming needs no state."""

from __future__ import annotations

import math

from headway.spec.run_file import ScheduleConfig


def lr_ratio(schedule: ScheduleConfig, step: int, total: int) -> float:
    """Learning rate of `step` (from 0) over the peak, in a run of `total` steps.

    Warm-up rises linearly and reaches the peak at its last step; the first step is not zero, or it
    would be spent for nothing. The last step of the run is exactly at `min_lr_ratio`.
    """
    warmup = min(schedule.warmup.steps(total), total)
    if step < warmup:
        return (step + 1) / warmup
    floor = schedule.min_lr_ratio
    if schedule.type == "constant":
        return 1.0
    first = decay_start(schedule, total)
    if step < first:
        return 1.0
    # Share of the decay that is done: 0 just before its first step, 1 at the last step of the run.
    done = (step - first + 1) / max(1, total - first)
    if schedule.type == "cosine":
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done))
    return 1 - (1 - floor) * done


def decay_start(schedule: ScheduleConfig, total: int) -> int:
    """The first step that is below the peak again: after the warm-up or, of wsd, the hold."""
    warmup = min(schedule.warmup.steps(total), total)
    if schedule.type == "wsd":
        return max(warmup, total - schedule.decay.steps(total))
    return warmup
