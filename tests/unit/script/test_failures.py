"""Whose failure is counted, when several ranks fail."""

from __future__ import annotations

from itertools import permutations
from typing import cast

from headway.member.worker.session_keys import SessionKeys
from headway.script.ending import Blame
from headway.script.meeting import Failure, Failures
from support.fake_keys import FakeKeys


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
