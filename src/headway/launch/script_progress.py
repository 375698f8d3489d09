"""When a script that keeps ending is not started again. Pure.

A script tells nothing of what it has saved. What is known is how long its processes lived, how they
ended, and the steps of its heartbeat, if it writes one. So machines are never held against it, at
whatever rate they are lost: a generation that ended because another node was lost counts for
nothing. Its own errors do: those that come soon after each start, or again and again at the same
point.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from headway.errors import Exit

ALIVE_SECONDS = 600.0
"""Life after which a start counts as one that worked."""
SHORT_SECONDS = 60.0
"""Life below which nothing can have been gained."""
MOST_ALIKE = 3
"""Errors in a row that are alike, each soon after its start."""
MOST_ALIKE_LATE = 5
"""The same, each after a long life: one at its first save after half an hour comes back with every
start. By accident, five errors in a row are not after the same time."""
MOST_EARLY = 10
"""Errors of any kind in a row, each soon after its start: of a broken network, or of machines that
the coordinator did not know to be lost."""
MOST_SHORT, SHORT_SPAN_SECONDS = 30, 3600.0
"""Starts in a row that end with their generation within a minute, for an hour: machines that are
reclaimed together take minutes, and nodes that join one by one wait for each other."""
ALIKE_SECONDS, ALIKE_SHARE = 10.0, 0.1
"""Difference of two lives that ended at the same point."""
PEER_SIGNS = ("by peer", "Broken pipe", "remote process exited", "ncclRemoteError")
"""In the words of a script whose peer has ended: it explains nothing."""
DIGITS = re.compile(r"[0-9a-f]*\d[0-9a-f]*")
"""Addresses, ports, process ids and times differ from one start to the next."""


@dataclass(frozen=True)
class ScriptEnd:
    """Of a node's processes, or of its pod."""

    lived_seconds: float
    is_error: bool = False
    """Its own; else its generation was over."""
    was_killed: bool = False
    """From outside, by a signal that neither the script nor the kernel sends."""
    words: str = ""
    """Why, as it says."""

    @property
    def is_late(self) -> bool:
        return self.lived_seconds >= ALIVE_SECONDS

    def is_beyond(self, other: ScriptEnd) -> bool:
        """Whether it has come past the point at which the other one ended."""
        allowed = max(ALIKE_SECONDS, ALIKE_SHARE * other.lived_seconds)
        return self.lived_seconds > other.lived_seconds + allowed

    def is_like(self, other: ScriptEnd) -> bool:
        """Whether it is the same error, at the same point. That a peer was lost is none, nor is an
        end from outside."""
        if self.was_killed or any(sign in _last_line(self.words) for sign in PEER_SIGNS):
            return False
        is_elsewhere = self.is_beyond(other) or other.is_beyond(self)
        return not is_elsewhere and _last_line(self.words) == _last_line(other.words)


@dataclass
class ScriptEnds:
    """Ends in a row, without progress in between: a step of the heartbeat beyond all before."""

    num_alike: int = 0
    num_early: int = 0
    num_short: int = 0
    since: float = 0.0
    """Time of the first of the errors."""
    short_since: float = 0.0
    """Time of the first of the short starts."""
    _step: int = 0
    _error: ScriptEnd | None = None
    """The newest."""

    def add(self, end: ScriptEnd, step: int, now: float) -> None:
        """`step`: highest of the heartbeat, 0 if there is none."""
        if step > self._step:
            self._error, self.num_alike, self.num_early, self.num_short = None, 0, 0, 0
        self._step = max(step, self._step)
        self._count_short(end, now)
        if not end.is_error or (end.was_killed and end.lived_seconds >= SHORT_SECONDS):
            if self._error is not None and not self._error.is_beyond(end):
                self.num_alike = 0  # it has come as far without the error
            if end.lived_seconds >= SHORT_SECONDS:
                self.num_early = 0
            return
        is_alike = self._error is not None and end.is_like(self._error)
        self.num_alike = self.num_alike + 1 if is_alike else 1
        self.num_early = 0 if end.is_late else self.num_early + 1
        self._error = end
        if max(self.num_alike, self.num_early) <= 1:
            self.since = now

    def are_too_many(self, now: float, seen_seconds: float = 0.0) -> bool:
        """`seen_seconds`: time after which a step is certainly visible here."""
        if self.num_short >= MOST_SHORT and now - self.short_since >= SHORT_SPAN_SECONDS:
            return True
        most_alike = MOST_ALIKE if self._error and not self._error.is_late else MOST_ALIKE_LATE
        is_enough = self.num_alike >= most_alike or self.num_early >= MOST_EARLY
        return is_enough and now - self.since >= seen_seconds

    def __str__(self) -> str:
        if self.num_early >= MOST_EARLY:
            return f"{self.num_early} times in a row within {ALIVE_SECONDS / 60:.0f} minutes"
        if self._error is not None and self.num_alike >= MOST_ALIKE:
            minutes = self._error.lived_seconds / 60
            after = f"{minutes:.0f} minutes" if minutes >= 2 else f"{60 * minutes:.0f} s"
            return f"{self.num_alike} times in a row in the same way, about {after} after its start"
        return f"{self.num_short} times in a row within {SHORT_SECONDS:.0f} s of its start"

    def _count_short(self, end: ScriptEnd, now: float) -> None:
        self.num_short = self.num_short + 1 if end.lived_seconds < SHORT_SECONDS else 0
        if self.num_short <= 1:
            self.short_since = now


def was_killed(exit_code: int | None, out_of_memory: bool | None) -> bool:
    """Whether a worker was ended from outside: not by the kernel for its memory, nor by itself.
    `out_of_memory` is known of SIGKILL only."""
    if exit_code == -signal.SIGTERM:
        return True
    return exit_code == -signal.SIGKILL and out_of_memory is False


def describe_script_exit(exit_code: int, how: str) -> str:
    """Codes of ours mean nothing to the one who wrote the script."""
    return "failed" if exit_code == Exit.PEER_LOST else how


def _last_line(words: str) -> str:
    lines = words.strip().splitlines()
    return DIGITS.sub("", lines[-1]) if lines else ""
