"""A worker that ends with its generation: how it exits when it has no place, and when it has."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from headway.errors import Exit, Stopped
from headway.member.protocol.status import WorkerStatus
from headway.member.worker.session_view import SessionClosed
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
