"""A planned change of members waits for a script that is about to be done: one that saves its
result on rank 0 would lose it, and train its last part again."""

from __future__ import annotations

from contextlib import suppress

from headway.clock import Clock
from headway.member.worker.session_keys import SessionKeys
from headway.member.worker.session_view import SessionError

FINISH_SECONDS = 600.0
"""For a script to be done, once one of its ranks is, before a planned change ends it. The
coordinator waits for 900 s."""
LOOK_SECONDS = 1.0
"""Between two looks whether a rank has given up."""


class Finishing:
    """As all ranks of a generation see it, through its keys."""

    def __init__(self, keys: SessionKeys, clock: Clock) -> None:
        self._keys, self._clock = keys, clock
        self._planned_at: float | None = None
        """When it heard of a planned change."""
        self._is_begun = self._is_given_up = False
        self._looked_at = clock.monotonic()

    def done(self) -> None:
        """The script has ended with 0 here."""
        with suppress(SessionError):
            self._keys.set("some_done", b"1")

    def give_up(self) -> None:
        """This rank leaves before all are done: the others would wait in vain for it."""
        with suppress(SessionError):
            self._keys.set("given_up", b"1")

    def is_given_up(self) -> bool:
        now = self._clock.monotonic()
        if not self._is_given_up and now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            with suppress(SessionError):
                self._is_given_up = not self._keys.missing(["given_up"])
        return self._is_given_up

    def is_waited_for(self) -> bool:
        """Asked once a change is planned. All ranks wait for the others, or none does: as the first
        of them that heard of the change has found."""
        now = self._clock.monotonic()
        if self._planned_at is None:
            self._planned_at = now
            with suppress(SessionError):
                found = b"0" if self._keys.missing(["some_done"]) else b"1"
                self._is_begun = self._keys.compare_set("finishing", b"", found) == b"1"
        is_due = self._is_begun and now - self._planned_at < FINISH_SECONDS
        return is_due and not self.is_given_up()
