"""Time left in a run, the same for all who ask: the terminal, `status`, `plan RUN` and a report.

Steps are timed by the clock, so that saves count; since the newest start or change of members,
after which the speed may be another one; without the first steps, which compile, fill caches and
allocate; and over the last minutes only. Evaluations are counted apart: the first one may come
after half of the run.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from headway.clock import seconds_of

WARMUP_STEPS = 3
"""Steps after a start that compile, fill caches and allocate."""
WINDOW_SECONDS = 600.0
FORWARD_SHARE = 1 / 3
"""Cost of an evaluation's forward pass beside that of a step, whose backward pass costs two."""


class TimeLeft:
    """Is told of events and of committed steps, each in order."""

    def __init__(self) -> None:
        self._total_steps: int | None = None
        self._evaluate_every = 0
        """Zero: the run evaluates nothing."""
        self._evaluation_batches = 0.0
        """Sequences of an evaluation, over those of a step."""
        self._starts: list[str] = []
        """Times of starts and changes of members from which no step is known yet."""
        self._evaluations: list[Mapping[str, Any]] = []
        self._first_step: int | None = None
        """The first step since the start."""
        self._kept: deque[tuple[int, float]] = deque()
        """Of each second the first step and its time. The first of them is the newest that is
        older than the window."""
        self._newest: Mapping[str, Any] | None = None

    def event(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "started":
                self._total_steps = event["total_steps"]  # None: a script tells none
                self._evaluate_every = int(event.get("evaluate_every", 0))
                self._evaluation_batches = float(event.get("evaluation_batches", 0))
                self._starts.append(event["time"])
                self._evaluations.clear()
            case "changed":
                self._starts.append(event["time"])
            case "evaluated":
                self._evaluations.append(event)

    def step(self, record: Mapping[str, Any]) -> None:
        """`record`: a line of the metrics, not a rewind."""
        step, time = int(record["step"]), seconds_of(record["time"])
        while self._starts and self._starts[0] <= record["time"]:
            del self._starts[0]
            self._first_step = None
            self._kept.clear()
        while self._kept and self._kept[-1][0] >= step:
            self._kept.pop()  # the run went back
        self._newest = record
        if self._first_step is None:
            self._first_step = step
        if step < self._first_step + WARMUP_STEPS:
            return
        if not self._kept or int(time) > int(self._kept[-1][1]):
            self._kept.append((step, time))
        while len(self._kept) > 1 and self._kept[1][1] <= time - WINDOW_SECONDS:
            self._kept.popleft()

    def seconds(self) -> float | None:
        """None before the first step."""
        if self._newest is None or self._total_steps is None:
            return None
        steps_left = max(0, self._total_steps - int(self._newest["step"]))
        each = self._step_seconds(self._newest)
        return steps_left * each + self._evaluations_left() * self._evaluation_seconds(each)

    def _step_seconds(self, newest: Mapping[str, Any]) -> float:
        if not self._kept or int(newest["step"]) == self._kept[0][0]:
            return float(newest["seconds"])
        first, began = self._kept[0]
        ended = seconds_of(newest["time"])
        evaluating = 0.0
        for evaluation in reversed(self._evaluations):
            time = seconds_of(evaluation["time"])
            if time < began:
                break
            evaluating += evaluation["seconds"] if time <= ended else 0.0
        return max(0.0, ended - began - evaluating) / (int(newest["step"]) - first)

    def _evaluations_left(self) -> int:
        """One is due at every multiple and at the end. That of the newest step may be running."""
        assert self._newest is not None
        assert self._total_steps is not None
        done = int(self._evaluations[-1]["step"]) if self._evaluations else 0
        newest = int(self._newest["step"])
        after = newest if done == newest else newest - 1
        if not self._evaluate_every or after >= self._total_steps:
            return 0
        every = self._evaluate_every
        return (self._total_steps - 1) // every - after // every + 1

    def _evaluation_seconds(self, step_seconds: float) -> float:
        if self._evaluations:
            return float(self._evaluations[-1]["seconds"])
        return self._evaluation_batches * step_seconds * FORWARD_SHARE


def seconds_left(
    steps: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> float | None:
    """What `TimeLeft` says after all of these: only those that matter are looked at."""
    left = TimeLeft()
    for event in events:
        left.event(event)
    if not steps:
        return None
    newest = steps[-1]["time"]
    starts = [
        event["time"]
        for event in events
        if event["event"] in ("started", "changed") and event["time"] <= newest
    ]
    first = bisect_left(steps, starts[-1], key=_stamp_of) if starts else 0
    oldest = bisect_right(steps, seconds_of(newest) - WINDOW_SECONDS, key=_time_of) - 1
    begin = first
    if oldest > first:  # from the beginning of its second on
        begin = max(first, bisect_left(steps, float(int(_time_of(steps[oldest]))), key=_time_of))
    if first < begin:
        left.step(steps[first])
    for record in steps[begin:]:
        left.step(record)
    return left.seconds()


def _stamp_of(record: Mapping[str, Any]) -> str:
    return str(record["time"])


def _time_of(record: Mapping[str, Any]) -> float:
    return seconds_of(record["time"])
