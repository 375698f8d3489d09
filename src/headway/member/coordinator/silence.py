"""How long a member may be silent before it is lost.

A dead process is known by its closed connection, at any size. Silence is left for machines that
vanish, and the longest of many pauses looks the same. So the time grows with the group, and with
the pauses that living members of this very run make.
"""

from __future__ import annotations

from math import log2

from headway.member.coordinator.rules import Rules
from headway.member.protocol.wire import HEARTBEAT_SECONDS

LATENESS_FACTOR = 2.0
"""A member is not lost before it is this many times as late as another that came back. By
simulation (`make bench-silence`): whatever the tail of the pauses, most records are not doubled."""


def silence_limit(rules: Rules, num_members: int, lateness: float) -> float:
    """Seconds without a heartbeat after which a member that is missed is lost. `lateness`: longest
    delay of a heartbeat that was seen lately.

    The longest of n pauses grows with log(n) if long ones are exponentially rare: a group of twice
    the size is given as much more."""
    allowance = rules.suspected_seconds - HEARTBEAT_SECONDS
    num_doublings = log2(max(1.0, num_members / rules.small_group))
    late = max(allowance * (1 + num_doublings), LATENESS_FACTOR * lateness)
    return min(HEARTBEAT_SECONDS + late, rules.longest_silence_seconds)


class RecentLateness:
    """The longest delay of a heartbeat in the last `seconds`, or in up to twice as many."""

    __slots__ = ("_before", "_now", "_seconds", "_since")

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds, self._since = seconds, now
        self._now = self._before = 0.0

    def note(self, late: float, now: float) -> None:
        self._pass_on(now)
        self._now = max(self._now, late)

    def longest(self, now: float) -> float:
        self._pass_on(now)
        return max(self._now, self._before)

    def _pass_on(self, now: float) -> None:
        if now - self._since >= self._seconds:
            is_recent = now - self._since < 2 * self._seconds
            self._before, self._now = (self._now if is_recent else 0.0), 0.0
            self._since = now
