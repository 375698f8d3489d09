"""Simulated time: what happens when, in an order that a seed decides."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

Action = Callable[[], object]


class World:
    def __init__(self, seed: int, telling: bool = False) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.story: list[str] | None = [] if telling else None
        self._queue: list[tuple[float, int, Action]] = []
        self._count = 0

    def after(self, seconds: float, action: Action) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + seconds, self._count, action))

    def soon(self, action: Action, longest: float = 0.01) -> None:
        self.after(self.random.random() * longest, action)

    def run(self, end: float, is_over: Callable[[], bool]) -> None:
        while self._queue and self.now < end:
            time, _, action = heapq.heappop(self._queue)
            self.now = time
            action()
            if is_over():
                return

    def tell(self, who: str, what: str) -> None:
        if self.story is not None:
            self.story.append(f"{self.now:8.3f} s  {who:<14} {what}")
