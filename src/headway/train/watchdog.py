"""Notices that training stands still, and shows where: the stacks of all threads, in this worker's
log. Every worker has one, so that all are shown when one of them holds up the others."""

from __future__ import annotations

import faulthandler
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headway.clock import Clock

FIRST_SECONDS = 900.0
"""For the first step of a process: compiling a large model takes minutes."""
LEAST_SECONDS = 60.0
MOST_STEPS = 20
"""So many steps' time without a step is no slowness any more."""
LOOK_SECONDS = 1.0


class Watchdog:
    def __init__(self, clock: Clock, hangs: Callable[[int], None]) -> None:
        """`hangs` is called, in the watchdog's thread, with the number of times in a row."""
        self._clock, self._hangs = clock, hangs
        self._on_duty = False
        self._longest = 0.0
        """Of the times between two signs of life so far."""
        self._fed_at = clock.monotonic()
        self._barks = 0
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @contextmanager
    def on_duty(self) -> Iterator[None]:
        """While steps are expected."""
        self._fed_at, self._barks, self._on_duty = self._clock.monotonic(), 0, True
        try:
            yield
        finally:
            self._on_duty = False

    def feed(self) -> None:
        """A sign of life: a step was committed, a part of an evaluation is done."""
        now = self._clock.monotonic()
        self._longest = max(self._longest, now - self._fed_at)
        self._fed_at, self._barks = now, 0

    @property
    def patience(self) -> float:
        if not self._longest:
            return FIRST_SECONDS
        return max(LEAST_SECONDS, MOST_STEPS * self._longest)

    @property
    def waited_seconds(self) -> float:
        """Since the last sign of life."""
        return self._clock.monotonic() - self._fed_at

    def _watch(self) -> None:
        while True:
            self._clock.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        waited = self.waited_seconds
        if self._on_duty and waited > self.patience * (self._barks + 1):
            self._barks += 1
            print(f"no step for {waited:.0f} s; what the threads do:", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
            self._hangs(self._barks)
