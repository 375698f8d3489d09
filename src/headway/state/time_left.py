"""Time left in a run, the same for everyone who asks: the terminal, `status`, a report.

By the clock, so that evaluations and saves count. The first steps after a start are left out, which
compile, fill caches and allocate; and what is longer ago than the window, since nodes come and go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from headway.clock import seconds_of

WARMUP_STEPS = 3
WINDOW_SECONDS = 600.0
SPACING_SECONDS = 1.0
"""Between two times that are kept: a step may take a millisecond."""


class TimeLeft:
    """Is told of steps as they are committed, all or some of them."""

    def __init__(self) -> None:
        self._first_step: int | None = None
        """The first step since the start."""
        self._kept: deque[tuple[int, float]] = deque()
        """Steps and their times, oldest first, within the window."""
        self._newest: Mapping[str, Any] | None = None

    def start(self) -> None:
        """The run was started: what was known of its speed may no longer be so."""
        self._first_step, self._newest = None, None
        self._kept.clear()

    def add(self, record: Mapping[str, Any]) -> None:
        """`record`: a line of the metrics."""
        step, time = int(record["step"]), seconds_of(record["time"])
        if self._newest is not None and step <= self._newest["step"]:
            self._kept.clear()  # the run went back
        self._newest = record
        if self._first_step is None:
            self._first_step = step
        if step < self._first_step + WARMUP_STEPS:
            return
        if not self._kept or time - self._kept[-1][1] >= SPACING_SECONDS:
            self._kept.append((step, time))
        while len(self._kept) > 2 and time - self._kept[0][1] > WINDOW_SECONDS:
            self._kept.popleft()

    def seconds(self, total_steps: int) -> float | None:
        """None before the first step."""
        if self._newest is None:
            return None
        step = int(self._newest["step"])
        each = float(self._newest["seconds"])
        if self._kept and step > self._kept[0][0]:
            first, began = self._kept[0]
            each = (seconds_of(self._newest["time"]) - began) / (step - first)
        return max(0, total_steps - step) * each


def seconds_left(
    steps: Sequence[Mapping[str, Any]], started: str | None, total_steps: int
) -> float | None:
    """From all committed steps, in order. `started`: time of the newest start; until it has taken
    a step, those before it count."""
    if started is not None and steps and steps[-1]["time"] < started:
        started = None
    left = TimeLeft()
    recent: list[Mapping[str, Any]] = []
    for record in reversed(steps):
        age = seconds_of(steps[-1]["time"]) - seconds_of(record["time"])
        is_of_earlier_start = started is not None and record["time"] < started
        if is_of_earlier_start or (age > WINDOW_SECONDS and len(recent) > WARMUP_STEPS + 1):
            break
        recent.append(record)
    for record in reversed(recent):
        left.add(record)
    return left.seconds(total_steps)
