"""A clock for code that waits: no test sleeps."""

from __future__ import annotations

from collections.abc import Callable

from headway.clock import SystemClock


class Patient(SystemClock):
    """Time passes when it is asked to; somebody may do something meanwhile."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.passed = 0.0
        self.slept: list[float] = []
        self._meanwhile = meanwhile

    def monotonic(self) -> float:
        return self.passed

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.passed += seconds
        self._meanwhile()


class Hurried(SystemClock):
    """Waits as long as it must, and says that it was a hundred times longer."""

    def monotonic(self) -> float:
        return super().monotonic() * 100
