"""Whether a planned change waits for a script that is about to be done: all ranks decide alike."""

from __future__ import annotations

from typing import cast

import pytest

from headway.member.worker.session_keys import SessionKeys
from headway.script.finishing import FINISH_SECONDS, LOOK_SECONDS, Finishing
from support.fake_fork_server import ToldClock
from support.fake_keys import FakeKeys


@pytest.fixture
def clock() -> ToldClock:
    return ToldClock()


def ranks(clock: ToldClock, number: int) -> list[Finishing]:
    keys = cast(SessionKeys, FakeKeys())
    return [Finishing(keys, clock) for _ in range(number)]


def test_it_is_decided_once_for_all_ranks(clock: ToldClock) -> None:
    """Else some would end, and the others wait for them for ten minutes."""
    first, second = ranks(clock, 2)
    assert not first.is_waited_for()
    second.done()
    assert not second.is_waited_for(), "a moment later"
    first, second = ranks(clock, 2)
    second.done()
    assert first.is_waited_for()
    assert second.is_waited_for()


def test_not_for_ever(clock: ToldClock) -> None:
    first, second = ranks(clock, 2)
    second.done()
    assert first.is_waited_for()
    clock.sleep(FINISH_SECONDS - 1)
    assert first.is_waited_for()
    clock.sleep(2)
    assert not first.is_waited_for()


def test_not_for_a_rank_that_leaves_before_it_is_done(clock: ToldClock) -> None:
    first, second = ranks(clock, 2)
    second.done()
    assert second.is_waited_for()
    first.give_up()
    clock.sleep(LOOK_SECONDS + 1)
    assert not second.is_waited_for()
    assert second.is_given_up()
