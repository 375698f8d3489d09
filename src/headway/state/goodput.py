"""Goodput: the fraction of a run's time spent on steps that count, and the causes of lost time.

Time between two starts is reported as `down` and does not reduce goodput: somebody may have stopped
the run for a night.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from headway.clock import seconds_of
from headway.state.rewinds import Record, apply_rewinds

CAUSES = (
    *("start", "import", "build", "load", "redone"),
    *("skipped", "changes", "preparation", "data", "evaluation", "saving"),
)

NO_SIGNS = ("tries_again", "coordinator_lost", "scaled")
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


def goodput(events: list[Record], steps: list[Record]) -> Goodput | None:
    """From the logs alone: `steps` are all that were ever recorded, rewinds not folded."""
    done = [step for step in steps if "rewind" not in step]
    if not done:
        return None
    kept = apply_rewinds(steps)
    lost = dict.fromkeys(CAUSES, 0.0)
    lost["redone"] = sum(s["seconds"] for s in done) - sum(s["seconds"] for s in kept)
    lost["skipped"] = sum(s["seconds"] for s in kept if s.get("skipped"))
    learned = [step for step in kept if not step.get("skipped")]
    lost["preparation"] = sum(step.get("unprepared_seconds", 0.0) for step in learned)
    waited = sum(step["data_seconds"] for step in learned)
    lost["data"] = waited - lost["preparation"]
    learning = sum(step["seconds"] for step in learned) - waited
    launched, times = None, sorted(seconds_of(step["time"]) for step in done)
    for event in events:
        match event["event"]:
            case "launched" | "lost":  # a lost worker starts anew, and sometimes all do
                launched = seconds_of(event["time"])
            case "started":
                parts = event["seconds"]
                for cause in ("import", "build", "load"):
                    lost[cause] += parts[cause]
                lost["preparation"] += parts.get("preparation", 0.0)
                if launched is not None:
                    now = seconds_of(event["time"])
                    before = bisect_left(times, now)
                    # Where the members change as planned, all start after their last step.
                    begun = max(launched, times[before - 1]) if before else launched
                    lost["start"] += max(0.0, now - begun - sum(parts.values()))
            case "changed":
                lost["changes"] += event["seconds"]
            case "evaluated":
                lost["evaluation"] += event["seconds"]
            case "saving":
                lost["saving"] += event["held_seconds"]
    total, down = _spans(events, done)
    lost["other"] = max(0.0, total - learning - sum(lost.values()))
    return Goodput(
        ratio=round(learning / total, 4) if total else 0.0,
        total_seconds=round(total, 3),
        learning_seconds=round(learning, 3),
        lost_seconds={cause: round(seconds, 3) for cause, seconds in lost.items()},
        down_seconds=round(down, 3),
    )


def spent_seconds(events: list[Record], steps: list[Record], now: float | None = None) -> float:
    """Seconds of all starts together. `now`: a sign of life besides the records."""
    return _spans(events, [step for step in steps if "rewind" not in step], now)[0]


def _spans(
    events: list[Record], steps: list[Record], now: float | None = None
) -> tuple[float, float]:
    """Seconds of all starts together, and seconds between them."""
    launches = [seconds_of(event["time"]) for event in events if event["event"] == "launched"]
    signs = sorted(seconds_of(record["time"]) for record in (*_signs(events), *steps))
    signs += [now] if now is not None else []
    total = down = 0.0
    if not launches and signs:
        launches = signs[:1]  # the launcher's log is on another machine
    for launch, following in zip(launches, [*launches[1:], float("inf")], strict=False):
        last = max((sign for sign in signs if launch <= sign < following), default=launch)
        total += last - launch
        if following != float("inf"):
            down += following - last
    return total, down


def _signs(events: list[Record]) -> Iterator[Record]:
    """That the run goes on. One that held nothing when it gave its pods back, and only asks for
    machines of another kind, shows none by that."""
    for event in events:
        held_nothing = event["event"] == "gave_back" and event.get("held") == 0
        if not held_nothing and event["event"] not in NO_SIGNS:
            yield event
