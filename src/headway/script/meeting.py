"""What the workers of a generation tell each other through its keys: that their script has ended,
and whose failure explains the others."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headway.member.worker.session_keys import REQUEST_SECONDS, SessionKeys
from headway.member.worker.session_view import Late, Unanswered


class Meeting:
    """Ranks that wait for each other. The first of them collects the others: each sets one key and
    waits for one, however many they are. What was set is set again each time: a coordinator that
    was restarted has none of it."""

    def __init__(self, keys: SessionKeys, name: str, ranks: Sequence[int], rank: int) -> None:
        self._keys, self._name, self._ranks, self._rank = keys, name, ranks, rank
        self.missing: list[int] = []
        """Some of those that have not come; known to the first only."""

    def is_complete(self, seconds: float) -> bool:
        """Whether all have come, now or within this time. Raises GenerationOver or Denied if they
        cannot meet any more."""
        everyone = f"{self._name}/all"
        try:
            if self._rank != self._ranks[0]:
                self._keys.set(self._key(self._rank), b"1")
                return not self._keys.missing([everyone], seconds)
            others = [self._key(rank) for rank in self._ranks if rank != self._rank]
            missing = self._keys.missing(others, seconds)
            self.missing = [int(key.rpartition("/")[2]) for key in missing]
            if not missing:
                self._keys.set(everyone, b"1")
            return not missing
        except (Late, Unanswered):
            return False

    def _key(self, rank: int) -> str:
        return f"{self._name}/{rank}"


class Failure(msgspec.Struct, frozen=True):
    """Of one rank's script."""

    rank: int
    blame: int
    """Of several, the one with the most explains the others; of equals that of the lowest rank:
    always that of the same node, whose launcher counts what repeats."""

    @property
    def weight(self) -> tuple[int, int]:
        return self.blame, -self.rank


class Failures:
    """The failures of a generation: one of them explains the others, and is counted."""

    def __init__(self, keys: SessionKeys, num_workers: int) -> None:
        self._keys, self._num_workers = keys, num_workers

    def add(self, failure: Failure) -> None:
        known = self.first()
        while known is None or known.weight < failure.weight:
            expected = b"" if known is None else msgspec.json.encode(known)
            there = self._keys.compare_set("failed", expected, msgspec.json.encode(failure))
            known = msgspec.json.decode(there, type=Failure)
            if known == failure:
                break
        self._keys.add("num_failed", 1)

    def first(self) -> Failure | None:
        """The one that explains the others, as far as is known."""
        if self._keys.missing(["failed"]):
            return None
        return msgspec.json.decode(self._keys.get("failed", REQUEST_SECONDS), type=Failure)

    def are_all(self) -> bool:
        """Whether every rank's script has failed: then no worker is lost, and nothing is waited
        for."""
        return self._keys.add("num_failed", 0) >= self._num_workers
