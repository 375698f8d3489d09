"""A worker that ends with its generation: how it exits when it has no place, and when it has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headway.errors import Exit, Stopped
from headway.member.protocol.generation import Generation
from headway.member.protocol.status import WorkerStatus
from headway.member.worker.session import Session
from headway.member.worker.session_view import Late, SessionClosed
from headway.train import restart
from headway.train.__main__ import exit_code_of
from headway.train.restart import RestartWorlds
from headway.train.stop_request import StopRequest


class ClosedSession:
    """Its status is all that is asked for."""

    def __init__(self, **status: int) -> None:
        self.view = SimpleNamespace(status=WorkerStatus(**status))

    def wait_for(self, *_: object) -> None:
        raise SessionClosed("closed")

    def goodbye(self, reason: str) -> None:
        pass


class EnteringSession(Session):
    """Has a place in generation 3, and the others are there when it has waited for them twice."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then, self._waits = then, 0
        self._view: Any = SimpleNamespace(
            status=WorkerStatus(ready=True), domain=0, may_form=False, generation=paused(3)
        )

    @property
    def view(self) -> Any:
        return self._view

    def wait_for(self, what: str, is_so: Callable[[Any], bool], seconds: float) -> Any:
        if what == "a change":
            raise SessionClosed("closed")
        self._waits += what == "all others"
        self._view.may_form = self._waits == 2
        if not is_so(self._view):
            raise Late(what)
        return self._view

    def enter(self, number: int) -> Generation:
        self._view.status = WorkerStatus(entered=number)
        self._then()
        return paused(number)


def paused(number: int) -> Generation:
    return Generation(
        number=number, incarnation=1, domains=(), leader=0, paused=True, sound=(), reason=""
    )


def worlds_of(stop: StopRequest, **status: int) -> RestartWorlds:
    session: Any = ClosedSession(**status)
    return RestartWorlds(session, stop)


@pytest.mark.parametrize(
    ("stops", "leaves", "expected"),
    [
        (True, False, Exit.GENERATION_OVER),
        (False, True, Exit.STOPPED),
        (True, True, Exit.GENERATION_OVER),
    ],
)
def test_a_newcomer_that_stops_does_not_say_that_the_run_is_saved(
    stops: bool, leaves: bool, expected: Exit
) -> None:
    """The members may still be at it: their launcher ends them soon after the first STOPPED."""
    stop = StopRequest(is_live=True)
    stop.asked, stop.leave_asked = stops, leaves
    with pytest.raises(Stopped) as caught:
        worlds_of(stop).wait_for_place()
    assert caught.value.exit_code == expected


def test_one_that_has_entered_leaves_after_the_first_step_and_not_before() -> None:
    """The others wait in the group for all that have entered: nothing tells them of a goodbye."""
    stop = StopRequest(is_live=True)
    worlds = RestartWorlds(EnteringSession(then=lambda: setattr(stop, "leave_asked", True)), stop)
    assert worlds.wait_for_place().number == 3
    assert stop.leave_asked


def test_a_finished_run_is_done_although_its_members_change() -> None:
    worlds = worlds_of(StopRequest(is_live=True), seen=3, entered=2)
    assert exit_code_of(Exit.STOPPED, worlds) == Exit.GENERATION_OVER
    assert exit_code_of(Exit.DONE, worlds) == Exit.DONE


def test_one_that_is_suspended_after_the_save_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restart, "MEET_SECONDS", 0.1)
    held = threading.Event()
    world: Any = SimpleNamespace(barrier=lambda: held.wait(30))
    began = time.monotonic()
    worlds_of(StopRequest(is_live=True)).finish(world)
    assert time.monotonic() - began < 20
    held.set()
