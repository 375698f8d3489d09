"""Whether a script stands still: by its heartbeats, if it has any, else by the processor time that
its processes use."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from pathlib import Path

from headway.clock import Clock
from headway.script.processes import ProcessStat, catches
from headway.train.hang_rule import HangRule

STACKS_FOLDER = Path(__file__).with_name("stacks")
"""In PYTHONPATH of the command: Python then shows its stacks on STACKS_SIGNAL."""
STACKS_SIGNAL = signal.SIGRTMIN + 12 if hasattr(signal, "SIGRTMIN") else 0
"""The same number is in stacks/sitecustomize.py, which imports nothing of ours."""
MOST_STACKS = 16
"""Processes of a script whose stacks are shown: those of a DataLoader are all alike."""
STACKS_PAUSE_SECONDS = 0.05
"""Between two of them, which write to the same log."""

END_SECONDS = 1800.0
"""Without a heartbeat, after which the script is ended. Most of it is for evaluations and saves,
during which scripts tell nothing; torch ends a collective that hangs after 10 minutes (NCCL) or 30
(gloo)."""
IDLE_SECONDS = 600.0
IDLE_CORES = 0.01
"""Processes that use less of a core than this, all together, are idle."""
SAMPLE_SECONDS = 10.0


class StandStillVerdict(Enum):
    STUCK = "stuck"
    """It shows no progress: people may want to know."""
    END = "end"
    """It is ended, and counted as lost."""


class StandStill:
    """`processes` are those of the script."""

    def __init__(self, clock: Clock, processes: Callable[[], Iterable[ProcessStat]]) -> None:
        self._clock, self._processes = clock, processes
        self._rule = HangRule(clock)
        self._has_heartbeat = self._is_stuck = False
        self._ticks: dict[tuple[int, int], int] = {}
        self._sampled_at = self._busy_at = clock.monotonic()

    @property
    def is_idle(self) -> bool:
        """Whether the verdict is by processor time."""
        return not self._has_heartbeat

    @property
    def waited_seconds(self) -> float:
        if self._has_heartbeat:
            return self._rule.waited_seconds
        return self._clock.monotonic() - self._busy_at

    def heartbeat(self) -> None:
        self._has_heartbeat, self._is_stuck = True, False
        self._rule.committed()

    def look(self) -> StandStillVerdict | None:
        """A verdict that is new."""
        if self._has_heartbeat:
            is_long = self._rule.waited_seconds > self._rule.patience
            if self._rule.waited_seconds > max(END_SECONDS, 2 * self._rule.patience):
                return StandStillVerdict.END
        else:
            self._sample()
            is_long = self._clock.monotonic() - self._busy_at >= IDLE_SECONDS
        was_stuck, self._is_stuck = self._is_stuck, is_long
        return StandStillVerdict.STUCK if is_long and not was_stuck else None

    def _sample(self) -> None:
        now = self._clock.monotonic()
        seconds = now - self._sampled_at
        if seconds < SAMPLE_SECONDS:
            return
        ticks = {(one.pid, one.started): one.ticks for one in self._processes()}
        used = sum(count - self._ticks.get(process, 0) for process, count in ticks.items())
        self._ticks, self._sampled_at = ticks, now
        if used / os.sysconf("SC_CLK_TCK") >= IDLE_CORES * seconds:
            self._busy_at = now


def show_stacks(processes: Iterable[ProcessStat], clock: Clock) -> int:
    """Has Python processes write their stacks to the log; how many."""
    catching = sorted(one.pid for one in processes if catches(one.pid, STACKS_SIGNAL))[:MOST_STACKS]
    for pid in catching:
        with suppress(ProcessLookupError):
            os.kill(pid, STACKS_SIGNAL)
        clock.sleep(STACKS_PAUSE_SECONDS)
    return len(catching)
