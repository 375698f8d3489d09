"""When a run did not train, for how long, and why; and which of that is an interruption.

An interruption is a loss that the run has recovered from, however many workers it took. None are:
a start, a planned change of the nodes, a worker that joins, and one that leaves with notice, which
has saved its state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from headway.clock import seconds_of
from headway.state.rewinds import Record

LOST = " is lost"
"""Part of the coordinator's reason for a generation without a worker that was lost."""
Kind = Literal["down", "start", "restart", "change"]
ENDS = {
    "finished": "finished",
    "stopped": "stopped",
    "failed": "failed",
    "budget": "out of budget",
    "budget_unknown": "cost not known",
}


@dataclass
class InterruptionCount:
    """Counts interruptions in a run's events, which are added in order."""

    number: int = 0
    is_lost: bool = False
    """Whether a worker was lost since the newest start or change."""
    is_planned: bool = True
    """Whether the next start was asked for."""

    def add(self, event: Record) -> bool:
        """Return whether this event ends an interruption."""
        name, is_one = event["event"], False
        if name in ("lost", "restarted"):
            self.is_lost = True
        elif name in ("scaled", "left", "gave_back"):
            self.is_planned = True
        elif name == "launched" or name in ENDS:
            self.is_lost, self.is_planned = False, True
        elif name in ("started", "changed"):
            # The launcher and the members note the same loss, in any order: in a change, only the
            # reason counts.
            restarted = self.is_lost or not self.is_planned
            is_one = restarted if name == "started" else LOST in event["reason"]
            self.is_lost = self.is_planned = False
        self.number += is_one
        return is_one


@dataclass(frozen=True)
class Pause:
    kind: Kind
    """down: not running. start: from a launch to its first step. restart: from a loss to the next
    step, where all restart. change: of members, while the others wait."""
    start: float
    end: float
    cause: str
    step: int
    """The last step before it."""
    is_interruption: bool = False

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.start)


def pauses(events: Sequence[Record], steps: Sequence[Record]) -> list[Pause]:
    """`events`: of workers and launcher, by time. `steps`: all that were recorded, also those that
    were repeated, in the order they were taken."""
    return sorted(_Reader(steps).read(events), key=lambda one: one.start)


class _Reader:
    def __init__(self, steps: Sequence[Record]) -> None:
        self._steps = [step for step in steps if "rewind" not in step]
        self._times = [seconds_of(step["time"]) for step in self._steps]

    def read(self, events: Sequence[Record]) -> Iterator[Pause]:
        last_sign: float | None = None
        end = "ended without a record"
        begun: tuple[Kind, float, str] | None = None
        """A start or restart whose first step is still to come."""
        count = InterruptionCount()
        for event in events:
            is_one = count.add(event)
            time = seconds_of(event["time"])
            match event["event"]:
                case "launched":
                    if last_sign is not None:
                        before = max(last_sign, self._last_time(time))
                        yield Pause("down", before, time, end, self._step_at(time))
                    begun, end = ("start", time, "start"), "ended without a record"
                case "restarted":
                    before = max(last_sign or time, self._last_time(time))
                    begun = ("restart", before, f"restarted by {event['launcher']}")
                case "lost" | "left" if begun is None:
                    who = f"node {event['node']}"
                    is_lost = event["event"] == "lost"
                    how = event["how"] if is_lost else "has left"
                    begun = ("restart" if is_lost else "change", time, f"{who} {how}")
                case "changed":
                    start = time - float(event["seconds"])
                    yield Pause("change", start, time, event["reason"], event["step"], is_one)
                    if begun is not None and begun[0] != "start":
                        begun = None  # the others did not restart
                case "started":
                    unnoted: Kind = "restart" if is_one else "change"
                    kind, start, cause = begun or (unnoted, time, "the members changed")
                    first = self._first_time_after(time)
                    step = self._step_at(start)
                    yield Pause(kind, start, first or time, cause, step, is_one)
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
