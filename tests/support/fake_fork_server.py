"""A fork server in this process, and workers whose lives are told: a day of them takes seconds."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from headway.clock import SystemClock
from headway.launch.fork_server import WorkerExited, WorkerStarted

STARTS_SECONDS = 0.2
RUNS_SECONDS = 2.0
"""From the start of a worker to that of its command."""


class ToldClock(SystemClock):
    """It is as late as it was told, and a little later each time it is looked at."""

    def __init__(self) -> None:
        self.time = 1000.0

    def monotonic(self) -> float:
        self.time += 1e-6
        return self.time

    def now(self) -> float:
        return 1.8e9 + self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@dataclass(frozen=True)
class Life:
    """Of a worker."""

    seconds: float
    exit_code: int
    words: str = ""
    step: int = 0
    """Of its heartbeat, at the end."""


class FakeForkServer:
    """`live` tells the life of a worker, by its name and the time at which it starts."""

    def __init__(self, clock: ToldClock, live: Callable[[str, float], Life]) -> None:
        self.clock, self.live = clock, live
        self.starts: list[str] = []
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], list[WorkerStarted | WorkerExited]]]] = []

    def start(
        self, name: str, arguments: list[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.starts.append(name)
        now, life = self.clock.time, self.live(name, self.clock.time)
        steps = Path(environment["HEADWAY_STEPS"])

        def run() -> list[WorkerStarted | WorkerExited]:
            steps.write_text(f"0 {life.step}")
            return []

        pid = 2**22 + next(self._numbers)  # of no process
        self._at(now + STARTS_SECONDS, lambda: [WorkerStarted(name, pid)])
        if life.seconds > RUNS_SECONDS:
            self._at(now + RUNS_SECONDS, run)
        self._at(now + life.seconds, lambda: [WorkerExited(name, life.exit_code, life.words)])

    def poll(self, seconds: float) -> list[WorkerStarted | WorkerExited]:
        if not self._events:
            self.clock.time += seconds
            return []
        time, _, happens = heapq.heappop(self._events)
        self.clock.time = max(time, self.clock.time)
        return happens()

    def _at(self, time: float, happens: Callable[[], list[WorkerStarted | WorkerExited]]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), happens))
