"""When a run did not train, for how long, and why."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from headway.clock import seconds_of
from headway.state.rewinds import Record

Kind = Literal["down", "start", "restart", "change"]
ENDS = {
    "finished": "finished",
    "stopped": "stopped",
    "failed": "failed",
    "budget": "out of budget",
    "budget_unknown": "cost not known",
}


@dataclass(frozen=True)
class Interruption:
    kind: Kind
    """down: not running. start: from a launch to its first step. restart: from a loss to the next
    step, where all restart. change: of members, while the others wait."""
    start: float
    end: float
    cause: str
    step: int
    """The last step before it."""

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.start)


def interruptions(events: Sequence[Record], steps: Sequence[Record]) -> list[Interruption]:
    """`events`: of workers and launcher, by time. `steps`: all that were recorded, also those that
    were repeated, in the order they were taken."""
    return sorted(_Reader(steps).read(events), key=lambda one: one.start)


class _Reader:
    def __init__(self, steps: Sequence[Record]) -> None:
        self._steps = [step for step in steps if "rewind" not in step]
        self._times = [seconds_of(step["time"]) for step in self._steps]

    def read(self, events: Sequence[Record]) -> Iterator[Interruption]:
        last_sign: float | None = None
        end = "ended without a record"
        begun: tuple[Kind, float, str] | None = None
        """A start or restart whose first step is still to come."""
        for event in events:
            time = seconds_of(event["time"])
            match event["event"]:
                case "launched":
                    if last_sign is not None:
                        before = max(last_sign, self._last_time(time))
                        yield Interruption("down", before, time, end, self._step_at(time))
                    begun, end = ("start", time, "start"), "ended without a record"
                case "lost" | "left" if begun is None:
                    who = f"node {event['node']}"
                    how = event["how"] if event["event"] == "lost" else "has left"
                    begun = ("restart", time, f"{who} {how}")
                case "changed":
                    start = time - float(event["seconds"])
                    yield Interruption("change", start, time, event["reason"], event["step"])
                    if begun is not None and begun[0] == "restart":
                        begun = None  # the others did not restart
                case "started":
                    kind, start, cause = begun or ("restart", time, "the members changed")
                    first = self._first_time_after(time)
                    yield Interruption(kind, start, first or time, cause, self._step_at(start))
                    begun = None
                case kind if kind in ENDS:
                    end = ENDS[kind]
            last_sign = time

    def _last_time(self, before: float) -> float:
        at = bisect_right(self._times, before)
        return self._times[at - 1] if at else 0.0

    def _step_at(self, time: float) -> int:
        at = bisect_right(self._times, time)
        return int(self._steps[at - 1]["step"]) if at else 0

    def _first_time_after(self, time: float) -> float | None:
        """When the first step after it began."""
        at = bisect_right(self._times, time)
        if at == len(self._times):
            return None
        return max(time, self._times[at] - float(self._steps[at]["seconds"]))
