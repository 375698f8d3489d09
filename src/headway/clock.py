"""Time as an argument. Code that waits or stamps takes a Clock, so tests never sleep blindly."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since 1970: for stamps that people and other machines read."""
        ...

    def monotonic(self) -> float:
        """Seconds that never jump: for durations and deadlines."""
        ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def seconds_of(text: str) -> float:
    """Seconds since 1970 of what `stamp` made."""
    return datetime.fromisoformat(text).timestamp()


def stamp(seconds: float) -> str:
    """`2026-11-15T01:37:52.123Z`: the one form of a time in files and on screens."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
