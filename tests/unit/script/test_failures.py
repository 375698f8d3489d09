"""Whose failure is counted, when several ranks fail; what all ranks decide alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import cast

from headway.member.worker.session_keys import SessionKeys
from headway.script.ending import Blame
from headway.script.meeting import Failure, Failures, is_finishing


class FakeKeys:
    """Those of a generation."""

    def __init__(self) -> None:
        self.known: dict[str, bytes] = {}
        self.counts: dict[str, int] = {}

    def missing(self, names: Sequence[str], seconds: float = 0.0) -> list[str]:
        return [name for name in names if name not in self.known]

    def get(self, name: str, seconds: float) -> bytes:
        return self.known[name]

    def compare_set(self, name: str, expected: bytes, wanted: bytes) -> bytes:
        if self.known.get(name, b"") == expected:
            self.known[name] = wanted
        return self.known[name]

    def add(self, name: str, number: int) -> int:
        self.counts[name] = self.counts.get(name, 0) + number
        return self.counts[name]


def test_whether_a_planned_change_waits_is_decided_once_for_all_ranks() -> None:
    """Else some would end, and the others wait for them for ten minutes."""
    keys = FakeKeys()
    given = cast(SessionKeys, keys)
    assert not is_finishing(given), "the first to hear of the change"
    keys.known["some_done"] = b"1"
    assert not is_finishing(given), "another one, a moment later"
    keys = FakeKeys()
    given = cast(SessionKeys, keys)
    keys.known["some_done"] = b"1"
    assert [is_finishing(given), is_finishing(given)] == [True, True]


def blamed(*added: Failure) -> int:
    failures = Failures(cast(SessionKeys, FakeKeys()), num_workers=4)
    for failure in added:
        failures.add(failure)
    first = failures.first()
    assert first is not None
    assert failures.are_all() == (len(added) == 4)
    return first.rank


def test_of_equals_it_is_always_the_same_rank() -> None:
    """Whichever was the first: only then does one launcher see that a fault repeats."""
    failed = [Failure(rank, Blame.OWN.value) for rank in (1, 2, 3)]
    assert {blamed(*order) for order in permutations(failed)} == {1}


def test_one_that_explains_the_others_comes_first() -> None:
    failed = [
        Failure(0, Blame.FOLLOWS.value),
        Failure(1, Blame.ABORTED.value),
        Failure(2, Blame.OWN.value),
        Failure(3, Blame.OWN.value),
    ]
    assert {blamed(*order) for order in permutations(failed)} == {2}
