"""Detects that training hangs, and dumps the stacks of all threads to this worker's log. Every
worker has a watchdog, so that all stacks are dumped when one worker blocks the others."""

from __future__ import annotations

import faulthandler
import statistics
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headway.clock import Clock
from headway.member.coordinator.rules import FIRST_STEP_SECONDS

LEAST_SECONDS = 60.0
MOST_STEPS = 20
"""A step that takes this many times as long as usual hangs."""
RECENT_STEPS = 32
"""Steps whose median is the usual time of a step."""
LOOK_SECONDS = 1.0


class Watchdog:
    def __init__(self, clock: Clock, on_hang: Callable[[int], None]) -> None:
        """`on_hang` is called with the number of hangs in a row, in the watchdog's thread."""
        self._clock, self._on_hang = clock, on_hang
        self._on_duty = False
        self._first: float | None = None
        """Seconds of the first step, which includes compilation."""
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        """Seconds of the steps after it."""
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

    @contextmanager
    def off_duty(self) -> Iterator[None]:
        """Within `on_duty`: for what takes as long as it takes, such as a save that is waited
        for."""
        self._on_duty = False
        try:
            yield
        finally:
            self.feed()
            self._on_duty = True

    def feed(self) -> None:
        """Progress other than a step: a world begins, a part of an evaluation is done. What comes
        next may include compilation, here or on a new worker."""
        self._fed_at, self._barks = self._clock.monotonic(), 0
        self.patience = max(self._for_a_step(), self._for_a_compile())

    def committed(self) -> None:
        """A step was committed."""
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
        """Judged by the first step, which may have included one."""
        return (
            FIRST_STEP_SECONDS
            if self._first is None
            else min(FIRST_STEP_SECONDS, MOST_STEPS * self._first)
        )

    @property
    def waited_seconds(self) -> float:
        """Seconds since the last progress."""
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
            print(
                f"no step for {waited:.0f} s; stacks of all threads:", file=sys.stderr, flush=True
            )
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
            self._on_hang(self._barks)
