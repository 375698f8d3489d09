"""Time as this machine had it: without what its host gave to others.

A virtual machine on a busy host stands still now and then, for up to seconds at a time, while its
clocks continue. Linux counts that as the `steal` of each processor in /proc/stat, if the host tells
it. Where the host does not, it shows in a process that has precedence over all others and does
nothing but sleep: whatever it oversleeps, the processor was not there. Both stay near zero on a
machine of its own, however busy: there these seconds are those of the clock, and bounds are as
sharp.
"""

from __future__ import annotations

import atexit
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
STEAL = 8
"""Its column in /proc/stat, after the processor's name."""

SLEEPER = """
import mmap, os, struct, sys, time
processor, place, shared, parent = map(int, sys.argv[1:])
os.sched_setaffinity(0, {processor})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # root may
seconds = mmap.mmap(shared, 0)
overslept, until = 0.0, time.monotonic()
while os.getppid() == parent:
    time.sleep(0.01)
    since, until = until, time.monotonic()
    if until - since > 0.03:
        overslept += until - since - 0.01
        struct.pack_into("d", seconds, place, overslept)
"""


OVERSLEPT = "HEADWAY_TEST_OVERSLEPT"
"""Where test processes find what the sleepers of the first one write."""


def start_sleepers() -> None:
    """One on each processor that this process may use, as long as it lives. They end at once
    where nobody may have precedence. Test processes that it starts read what they write."""
    if OVERSLEPT in os.environ:
        return
    processors, parent = sorted(os.sched_getaffinity(0)), os.getpid()
    shared = os.memfd_create("overslept")
    os.truncate(shared, 8 * len(processors))
    os.environ[OVERSLEPT] = f"/proc/{parent}/fd/{shared}"
    for index, processor in enumerate(processors):
        sleeper = subprocess.Popen(
            [sys.executable, "-Sc", SLEEPER, *map(str, (processor, 8 * index, shared, parent))],
            pass_fds=[shared],
            stderr=subprocess.DEVNULL,
        )
        atexit.register(sleeper.wait)
        atexit.register(sleeper.kill)


def overslept_seconds() -> list[float]:
    """Of each processor, since the first test process started."""
    start_sleepers()
    content = Path(os.environ[OVERSLEPT]).read_bytes()
    return [seconds for (seconds,) in struct.iter_unpack("d", content)]


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
        self._overslept = overslept_seconds()
        self._began = time.monotonic()

    @property
    def wall_seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def lost_seconds(self) -> float:
        """What the host took of the processor that lost most."""
        stolen = zip(stolen_seconds(), self._stolen, strict=True)
        overslept = zip(overslept_seconds(), self._overslept, strict=True)
        return max(now - before for now, before in [*stolen, *overslept])

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
