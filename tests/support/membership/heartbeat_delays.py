"""Delays of heartbeats as they were measured under load (`make bench-heartbeats`), and longer ones
that were not, by their tail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MEASURED = Path(__file__).with_name("heartbeat_delays.json")
TAIL_PART = 0.01
"""The longest hundredth of what was measured says how rare longer ones are."""
BLOCK = 100_000

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class HeartbeatDelays:
    """Measured ones are drawn as they were. The longest hundredth is drawn from a law that fits it:
    `pareto`, by which a few of millions take seconds, or `exponential`, by which none does."""

    measured: Seconds
    tail: str = "pareto"
    source: str = ""

    @classmethod
    def load(cls, tail: str = "pareto", path: Path = MEASURED) -> HeartbeatDelays:
        found: dict[str, Any] = json.loads(path.read_text())
        late = found["late_milliseconds"]
        values = np.repeat([int(one) / 1000 for one in late], list(late.values()))
        source = f"{found['heartbeats']} heartbeats, {found['date']}, {found['machine']}"
        return cls(np.sort(values), tail, source)

    @property
    def threshold(self) -> float:
        return float(np.quantile(self.measured, 1 - TAIL_PART))

    @property
    def long_part(self) -> float:
        """Part of the delays that are longer than the threshold."""
        return float(np.mean(self.measured > self.threshold))

    def draw_long(self, random: np.random.Generator, number: int) -> Seconds:
        """Of those alone."""
        longest, threshold = self.measured[self.measured > self.threshold], self.threshold
        if self.tail == "pareto":
            mean = float(np.mean(np.log(longest / threshold)))
            return threshold * np.exp(random.exponential(mean, number))
        return threshold + random.exponential(float(np.mean(longest - threshold)), number)

    def draw(self, random: np.random.Generator, number: int) -> Seconds:
        found = random.choice(self.measured, number)
        is_long = found > self.threshold
        found[is_long] = self.draw_long(random, int(is_long.sum()))
        return found

    def each(self, random: np.random.Generator) -> Iterator[float]:
        while True:
            yield from self.draw(random, BLOCK).tolist()
