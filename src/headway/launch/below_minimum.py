"""Whether a run that has trained since it was started waits for nodes, for longer than a restart
takes to begin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.launch.lasting import Lasting

WAITS_SECONDS = 15.0
"""A restart in which all workers join again is no shortage."""


class BelowMinimum:
    def __init__(self) -> None:
        self._has_trained = False
        self._paused = Lasting()
        self._is_noted = False

    def look(
        self, state: Mapping[str, Any], is_meant: bool, now: float, *, has_enough: bool = False
    ) -> bool:
        """True once each time. `state`: the coordinator's. `is_meant`: the run was stopped, or
        has ended. `has_enough`: its nodes are there, and save before they restart."""
        paused = bool(state["generation"]["paused"])
        self._has_trained = not is_meant and (self._has_trained or not paused)
        waits = paused and self._has_trained and not is_meant and not has_enough
        seconds = self._paused.seconds(waits, now, now)
        is_new = seconds > WAITS_SECONDS and not self._is_noted
        self._is_noted = waits and (self._is_noted or is_new)
        return is_new
