"""How long a step may take before the worker counts as hung: by the time of those before it."""

from __future__ import annotations

import statistics
from collections import deque

from headway.clock import Clock
from headway.member.coordinator.rules import FIRST_STEP_SECONDS

LEAST_SECONDS = 60.0
MOST_STEPS = 20
"""A step that takes this many times as long as usual hangs."""
RECENT_STEPS = 32
"""Steps whose median is the usual time of a step."""


LATE_SECONDS = 20.0
LATE_STEPS = 3
"""On an accelerator a step is reported before it hangs: when it takes so long, and so many times as
long as usual. A device may stand still without an error, and all others wait for it."""


class HangRule:
    def __init__(self, clock: Clock, *, reports_late: bool = False) -> None:
        self._clock = clock
        self._reports_late = reports_late
        self._may_be_late = False
        """Nothing but a step has begun since the last one, and it was not reported."""
        self._first: float | None = None
        """Seconds of the first step, which includes compilation."""
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        """Seconds of the steps after it."""
        self.patience = FIRST_STEP_SECONDS
        self._fed_at = clock.monotonic()
        self._barks = 0

    def feed(self) -> None:
        """Progress other than a step: a world begins, a part of an evaluation is done. What comes
        next may include compilation, here or on a new worker."""
        self._fed_at, self._barks = self._clock.monotonic(), 0
        self._may_be_late = False
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
            self._may_be_late = self._reports_late

    @property
    def step_seconds(self) -> float:
        """Median of recent steps, or the first one; 0: none was committed yet."""
        return statistics.median(self._recent) if self._recent else self._first or 0.0

    @property
    def _late_seconds(self) -> float:
        return max(LATE_SECONDS, LATE_STEPS * self.step_seconds)

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

    def new_hang(self) -> int | None:
        """Number of hangs in a row, if there is a new one: after each time that a step may take.
        0, once: the step is late."""
        if self._may_be_late and self.waited_seconds > self._late_seconds:
            self._may_be_late = False
            return 0
        patience = self.patience  # before the time: a step that is committed in between lowers it
        if self.waited_seconds <= patience * (self._barks + 1):
            return None
        self._barks += 1
        return self._barks
