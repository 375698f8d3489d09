"""When the membership decides next, and how often at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headway.clock import Clock
from headway.member.coordinator.decide import Membership
from headway.member.coordinator.events import Decision

PAUSE_FACTOR = 3
"""Pause after a decision, as a multiple of the time it took: it goes through all members, and with
thousands of them, who all send something after a change, it would take half of the time."""


class DecisionSchedule:
    def __init__(
        self, membership: Membership, clock: Clock, act: Callable[[list[Decision]], None]
    ) -> None:
        """`act` is called with what is decided."""
        self._membership = membership
        self._clock = clock
        self._act = act
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0
        self._not_before = 0.0
        self._is_stopped = False

    def update(self) -> None:
        """The membership may want to decide earlier than planned."""
        if self._is_stopped:
            return
        at = max(self._membership.wake, self._not_before)
        if self._timer is not None:
            if self._at <= at:
                return
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_later(at - self._clock.monotonic(), self._decide)

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _decide(self) -> None:
        self._timer = None
        began = self._clock.monotonic()
        self._act(self._membership.decide(began))
        ended = self._clock.monotonic()
        self._not_before = ended + PAUSE_FACTOR * (ended - began)
        self.update()
