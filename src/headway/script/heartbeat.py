"""The heartbeat of a script: a file in which it may write its step, as often as it likes. It
becomes records of steps, as a training run writes them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from headway.clock import Clock, stamp
from headway.state.record_log import Log

READ_SECONDS = 1.0
"""Between two looks at the file, and so the least between two records."""
MAX_BYTES = 64


class ScriptHeartbeat(msgspec.Struct, frozen=True):
    step: int | None
    """None: the file was only touched."""


class HeartbeatFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: tuple[int, bytes] | None = None

    def new(self) -> ScriptHeartbeat | None:
        """The newest heartbeat, if there was one since the last time."""
        with suppress(OSError):
            with self._path.open("rb") as file:
                text = file.read(MAX_BYTES)
            found = (self._path.stat().st_mtime_ns, text)
            if found != self._last:
                self._last = found
                return ScriptHeartbeat(_step(text))
        return None


def _step(text: bytes) -> int | None:
    """A file that is just being written is empty: its number is read the next time."""
    word = text.split(maxsplit=1)[:1]
    return int(word[0]) if word and word[0].isdigit() else None


class StepRecords:
    """Lines of the metrics, for one generation: the steps of the one before it that this one
    repeats do not count."""

    def __init__(self, log: Log, generation: int, clock: Clock) -> None:
        self._log, self._generation, self._clock = log, generation, clock
        self._last: tuple[int, float] | None = None
        """Step and time of the newest record."""

    @property
    def step(self) -> int | None:
        return None if self._last is None else self._last[0]

    def add(self, step: int) -> None:
        now = self._clock.monotonic()
        before, since = self._last or (step, now)
        if self._last is not None and step == before:
            return
        if self._last is None or step < before:
            self._log.append({"rewind": max(0, step - 1), "generation": self._generation})
            since = now  # when it began with this step is not known
        self._last = (step, now)
        if step == 0:
            return
        self._log.append(
            {
                "step": step,
                "time": stamp(self._clock.now()),
                "generation": self._generation,
                "loss": None,
                "tokens_per_second": None,
                "seconds": round(now - since, 3),
                "data_seconds": 0.0,
            }
        )
