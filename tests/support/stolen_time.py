"""Time as this machine had it: without what its host gave to others.

A virtual machine on a busy host stands still now and then, for up to half a second at a time, while
its clocks continue. Linux counts that as the `steal` of each processor in /proc/stat. It stays zero
on a machine of its own: there these seconds are those of the clock, and bounds are as sharp.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
STEAL = 8
"""Its column in /proc/stat, after the processor's name."""


def stolen_seconds() -> list[float]:
    """Of each processor, since the machine started."""
    rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    return [
        int(row[STEAL]) / TICKS_PER_SECOND
        for row in rows
        if row[0].startswith("cpu") and row[0] != "cpu"
    ]


class Stopwatch:
    """Starts when it is made. An upper bound is for `seconds`, a lower one for `wall_seconds`."""

    def __init__(self) -> None:
        self._stolen = stolen_seconds()
        self._began = time.monotonic()

    @property
    def wall_seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def lost_seconds(self) -> float:
        """What the host took of the processor that lost most."""
        stolen = zip(stolen_seconds(), self._stolen, strict=True)
        return max(now - before for now, before in stolen)

    @property
    def seconds(self) -> float:
        wall = self.wall_seconds
        return max(0.0, wall - self.lost_seconds)


class Deadline:
    """So many of this machine's own seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._watch = Stopwatch()

    @property
    def has_passed(self) -> bool:
        is_past = self._watch.wall_seconds >= self._seconds
        return is_past and self._watch.seconds >= self._seconds
