"""Goodput: the fraction of a run's time spent on steps that count, and the causes of lost time.

Time between two starts is reported as `down` and does not reduce goodput: somebody may have stopped
the run for a night.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from heapq import merge
from typing import Any

from headway.clock import seconds_of
from headway.state.rewinds import Record, apply_rewinds

CAUSES = (
    *("start", "import", "build", "load", "redone"),
    *("skipped", "changes", "preparation", "data", "evaluation", "saving"),
)

NO_SIGNS = ("tries_again", "coordinator_lost", "scaled", "billed")
"""What the launcher notes also while the run has no pods, because it gave them back or its queue
has suspended it: no signs that it goes on."""


@dataclass(frozen=True)
class Goodput:
    ratio: float
    """Time of steps that were committed, learned from and not repeated, over the total time."""
    total_seconds: float
    """Time from each launch to the last record before the next."""
    learning_seconds: float
    lost_seconds: dict[str, float]
    """Lost time by cause: start, import, build, load, redone, skipped, changes (of members),
    preparation (of data), data, evaluation, saving, other."""
    down_seconds: float
    """Time between the end of one start and the next launch."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class StepSums:
    """Of steps, added up."""

    num_steps: int = 0
    num_skipped: int = 0
    done_seconds: float = 0.0
    """Of all that were ever recorded; the rest is of those that count."""
    kept_seconds: float = 0.0
    skipped_seconds: float = 0.0
    learned_seconds: float = 0.0
    data_seconds: float = 0.0
    """Of the steps that were learned from, as the next."""
    unprepared_seconds: float = 0.0

    def add(self, done: Sequence[Record], kept: Sequence[Record]) -> None:
        self.done_seconds += sum(step["seconds"] for step in done)
        self.num_steps += len(kept)
        for step in kept:
            seconds = step["seconds"]
            self.kept_seconds += seconds
            self.num_skipped += step.get("skipped") is not None
            if step.get("skipped"):
                self.skipped_seconds += seconds
            else:
                self.learned_seconds += seconds
                self.data_seconds += step["data_seconds"]
                self.unprepared_seconds += step.get("unprepared_seconds", 0.0)


@dataclass
class TimeSpent:
    """Is told of events and steps in the order of their times: how long the run has been under way,
    and what it was held up by, besides its steps."""

    lost: dict[str, float] = field(default_factory=dict)
    starting: str | None = None
    """Time of the newest launch or loss."""
    last_step: str | None = None
    launch: str | None = None
    """Time of the newest launch. None: the launcher's log is on another machine."""
    first_sign: str | None = None
    last_sign: str | None = None
    total_seconds: float = 0.0
    """Of the starts before the newest one."""
    down_seconds: float = 0.0

    def hear(self, events: Sequence[Record], done: Sequence[Record]) -> None:
        """`done`: all steps that were recorded, in any order."""
        by_time = sorted(done, key=_time_of)
        for record in merge(events, by_time, key=_time_of):
            if "event" in record:
                self._event(record)
            else:
                self.last_step = record["time"]
                self._sign(record["time"])

    def seconds(self, now: str | None = None) -> float:
        """Of all starts together. `now`: a sign of life besides the records."""
        last = max(filter(None, (self.last_sign, now)), default=None)
        began = self.launch or self.first_sign or now
        if began is None or last is None:
            return self.total_seconds
        return self.total_seconds + _between(began, max(began, last))

    def _sign(self, time: str) -> None:
        self.first_sign = self.first_sign or time
        self.last_sign = max(self.last_sign or time, time)

    def _lose(self, cause: str, seconds: float) -> None:
        self.lost[cause] = self.lost.get(cause, 0.0) + seconds

    def _event(self, event: Record) -> None:
        name, time = event["event"], event["time"]
        match name:
            case "launched":
                if self.launch is not None:
                    last = max(self.launch, self.last_sign or "")
                    self.total_seconds += _between(self.launch, last)
                    self.down_seconds += _between(last, time)
                self.launch = self.starting = time
            case "lost" | "restarted":  # a lost worker starts anew, and sometimes all do
                self.starting = time
            case "started":
                self._started(event)
            case "changed":
                self._lose("changes", event["seconds"])
            case "evaluated":
                self._lose("evaluation", event["seconds"])
            case "saving":
                self._lose("saving", event["held_seconds"])
        # One that held nothing when it gave its pods back, and only asks for machines of another
        # kind, shows no sign of life by that.
        if name not in NO_SIGNS and not (name == "gave_back" and event.get("held") == 0):
            self._sign(time)

    def _started(self, event: Record) -> None:
        parts = event["seconds"]
        for cause in ("import", "build", "load"):
            self._lose(cause, parts[cause])
        self._lose("preparation", parts.get("preparation", 0.0))
        if self.starting is not None:
            # Where the members change as planned, all start after their last step.
            begun = max(self.starting, self.last_step or "")
            waited = _between(begun, event["time"]) - sum(parts.values())
            self._lose("start", max(0.0, waited))


def goodput(events: Sequence[Record], steps: Sequence[Record]) -> Goodput | None:
    """From the logs alone: `steps` are all that were ever recorded, rewinds not folded."""
    done = [step for step in steps if "rewind" not in step]
    sums, spent = StepSums(), TimeSpent()
    sums.add(done, apply_rewinds(list(steps)))
    spent.hear(events, done)
    return goodput_of(sums, spent) if done else None


def goodput_of(sums: StepSums, spent: TimeSpent) -> Goodput:
    lost = dict.fromkeys(CAUSES, 0.0) | spent.lost
    lost["redone"] = sums.done_seconds - sums.kept_seconds
    lost["skipped"] = sums.skipped_seconds
    lost["preparation"] += sums.unprepared_seconds
    lost["data"] = sums.data_seconds - sums.unprepared_seconds
    learning = sums.learned_seconds - sums.data_seconds
    total = spent.seconds()
    lost["other"] = max(0.0, total - learning - sum(lost.values()))
    return Goodput(
        ratio=round(learning / total, 4) if total else 0.0,
        total_seconds=round(total, 3),
        learning_seconds=round(learning, 3),
        lost_seconds={cause: round(seconds, 3) for cause, seconds in lost.items()},
        down_seconds=round(spent.down_seconds, 3),
    )


def _time_of(record: Record) -> str:
    return str(record["time"])


def _between(begin: str, end: str) -> float:
    return seconds_of(end) - seconds_of(begin)
