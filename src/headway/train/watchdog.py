"""Notices that training stands still, and shows where: the stacks of all threads, in this worker's
log. Every worker has one, so that all are shown when one of them holds up the others."""

from __future__ import annotations

import faulthandler
import statistics
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headway.clock import Clock
from headway.member.rules import FIRST_STEP_SECONDS

LEAST_SECONDS = 60.0
MOST_STEPS = 20
"""So many steps' time without a step is no slowness any more."""
RECENT_STEPS = 32
"""Whose median time is a step's time."""
LOOK_SECONDS = 1.0


class Watchdog:
    def __init__(self, clock: Clock, hangs: Callable[[int], None]) -> None:
        """`hangs` is called, in the watchdog's thread, with the number of times in a row."""
        self._clock, self._hangs = clock, hangs
        self._on_duty = False
        self._first: float | None = None
        """Seconds of the first step: with what was compiled in it."""
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        """Seconds of those after it."""
        self.patience = FIRST_STEP_SECONDS
        self._fed_at = clock.monotonic()
        self._barks = 0
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @contextmanager
    def on_duty(self) -> Iterator[None]:
        """While steps are expected."""
        self.feed()
        self._on_duty = True
        try:
            yield
        finally:
            self._on_duty = False

    def feed(self) -> None:
        """A sign of life that is no step: a world begins, a part of an evaluation is done. What
        comes now may be compiled first, here or by a newcomer."""
        self._fed_at, self._barks = self._clock.monotonic(), 0
        self.patience = max(self._for_a_step(), self._for_a_compile())

    def committed(self) -> None:
        """A step was."""
        now = self._clock.monotonic()
        seconds = now - self._fed_at
        self._fed_at, self._barks = now, 0
        if self._first is None:
            self._first = seconds
            self.patience = max(self._for_a_step(), self._for_a_compile())
        else:
            self._recent.append(seconds)
            self.patience = self._for_a_step()

    @property
    def step_seconds(self) -> float:
        """Median of recent steps, or the first one; 0: none was committed yet."""
        return statistics.median(self._recent) if self._recent else self._first or 0.0

    def _for_a_step(self) -> float:
        return max(LEAST_SECONDS, MOST_STEPS * (self.step_seconds if self._recent else 0.0))

    def _for_a_compile(self) -> float:
        """As the first step had one in it, or none."""
        return (
            FIRST_STEP_SECONDS
            if self._first is None
            else min(FIRST_STEP_SECONDS, MOST_STEPS * self._first)
        )

    @property
    def waited_seconds(self) -> float:
        """Since the last sign of life."""
        return self._clock.monotonic() - self._fed_at

    def _watch(self) -> None:
        while True:
            self._clock.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        patience = self.patience  # before the time: a step that is committed in between lowers it
        waited = self.waited_seconds
        if self._on_duty and waited > patience * (self._barks + 1):
            self._barks += 1
            print(f"no step for {waited:.0f} s; what the threads do:", file=sys.stderr, flush=True)
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
            self._hangs(self._barks)
