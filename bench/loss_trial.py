"""One fault of `make bench-losses`: what the run records around it, and its figures."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from headway.clock import seconds_of
from headway.state.record_log import FileLog
from headway.state.rewinds import Record
from support.live import LiveRun
from support.waiting import wait_for

SETTLE_SECONDS = 60.0
OUTLIER = 2.0
"""Times the median."""


class LossTrial:
    """One fault, and what the run records from shortly before it on."""

    def __init__(self, run: LiveRun, chance: random.Random) -> None:
        self.run, self.chance = run, chance
        self.generation = run.generation().number
        """The newest one before the fault."""
        self.struck_at = self.ended_at = time.time()
        self.load = os.getloadavg()[0]
        self.figures: dict[str, float] = {}
        self.moment = ""
        """What the run was doing when it struck, if that was aimed at."""
        log = run.directory.metrics
        assert isinstance(log, FileLog)
        self._position = log.path.stat().st_size
        self._steps: list[Record] = []

    def kill(self, *places: tuple[int, int]) -> None:
        workers = self.run.workers()
        self.struck_at = time.time()
        for place in places:
            with suppress(ProcessLookupError):
                os.kill(workers[place], signal.SIGKILL)

    def steps(self) -> list[Record]:
        """All so far. Only what is new is read: a whole file would take the workers' cores."""
        more, self._position = self.run.directory.metrics.read(self._position)
        self._steps += [line for line in more if "time" in line]
        return self._steps

    def next_step(self, begin: float | None = None, wait_seconds: float = SETTLE_SECONDS) -> float:
        """Seconds from `begin`, or from the fault, to the first step of a newer generation."""

        def found() -> float | None:
            later = (line for line in self.steps() if line["generation"] > self.generation)
            return next((seconds_of(line["time"]) for line in later), None)

        at = wait_for("a step in another generation", found, wait_seconds)
        assert at is not None
        return at - (self.struck_at if begin is None else begin)

    def restart_parts(self) -> dict[str, float]:
        """Seconds of the parts of a restart of all workers, from the fault to the end of the first
        step. `fork` ends with the new process of node 0, which tells of the parts that follow, and
        includes the end of the old one."""

        def after(name: str, begin: float) -> list[Record]:
            events = self.run.events(name)
            return [event for event in events if seconds_of(event["time"]) >= begin]

        lost_at = seconds_of(after("lost", self.struck_at)[0]["time"])
        started = after("started", lost_at)[0]
        started_at = seconds_of(started["time"])
        forks = [event for event in after("worker", lost_at) if event["node"] == 0]
        forked_at = max(at for event in forks if (at := seconds_of(event["time"])) <= started_at)
        step_at = next(at for line in self.steps() if (at := seconds_of(line["time"])) > started_at)
        known = {**started["meeting_seconds"], **started["seconds"]}
        return {
            "notice": lost_at - self.struck_at,
            "fork": forked_at - lost_at,
            **known,
            "rest": started_at - forked_at - sum(known.values()),
            "first step": step_at - started_at,
        }

    def changes(self) -> list[float]:
        """Seconds between the last step of a generation and the first one of the next."""
        return [
            seconds_of(after["time"]) - seconds_of(before["time"])
            for before, after in pairwise(self.steps())
            if after["generation"] > before["generation"]
        ]

    def longest_step(self, since: float = 0.0) -> float:
        """Seconds between two steps from then on, or since the last one."""
        times = [at for line in self.steps() if (at := seconds_of(line["time"])) >= since]
        return max(after - before for before, after in pairwise([*times, time.time()]))

    def told(self) -> str:
        """All that is known of it, to explain an outlier."""
        begin, end = self.struck_at - 1.0, self.ended_at + 0.5
        told = [
            (seconds_of(event["time"]), json.dumps({k: v for k, v in event.items() if k != "time"}))
            for event in self.run.directory.history()
        ]
        usual = statistics.median(line["seconds"] for line in self.steps())
        for pair in pairwise(self.steps()):
            at = [seconds_of(line["time"]) for line in pair]
            numbers = [line["generation"] for line in pair]
            if numbers[0] != numbers[1] or at[1] - at[0] > OUTLIER * usual:
                words = [f"step {line['step']} in generation {line['generation']}" for line in pair]
                told += zip(at, words, strict=True)
        log = self.run.coordinator_log()
        for line in log.read_text().splitlines() if log and log.exists() else []:
            with suppress(ValueError):
                told.append((seconds_of(line.split()[0]), f"coordinator: {line.partition(' ')[2]}"))
        told.append((self.struck_at, f"FAULT {self.moment} {self.figures}, load {self.load:.1f}"))
        some = sorted({one for one in told if begin <= one[0] <= end})
        return "\n".join(f"  {at - self.struck_at:+8.3f} s  {words}" for at, words in some)


@dataclass
class Figure:
    median: float
    longest: float | None
    """Targets in seconds, beyond a step."""
    seconds: list[float] = field(default_factory=list)
    moments: Counter[str] = field(default_factory=Counter)
    step: float = 0.0

    def summary(self) -> dict[str, Any]:
        found, longest = statistics.median(self.seconds), max(self.seconds)
        target = None if self.longest is None else self.longest + self.step
        return {
            "median": round(found, 3),
            "longest": round(longest, 3),
            "step": round(self.step, 3),
            "target_median": round(self.median + self.step, 3),
            "target_longest": None if target is None else round(target, 3),
            "pass": found <= self.median + self.step and (target is None or longest <= target),
            "all": [round(one, 2) for one in sorted(self.seconds)],
            **({"moments": dict(self.moments)} if self.moments else {}),
        }
