"""A worker's session with the coordinator: a thread that training never waits for.

Training reads `view`, which never blocks; reports what it does by `enter`, `healed` and so on; and
asks the store that process groups are formed by. While the coordinator is away training continues,
and `view.error` says why there is no connection.

A process that is restarted in the same place is another worker for the coordinator: the name of a
session has a random part. So nobody takes one that holds nothing for one that held the run's state.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Self

from headway.member.protocol.generation import Generation
from headway.member.protocol.handshake import WorkerSide
from headway.member.protocol.identity import with_token
from headway.member.protocol.messages import (
    MAX_REQUESTS,
    StoreAnswer,
    StoreFailed,
    StoreRequest,
)
from headway.member.worker.channel import parse_address
from headway.member.worker.session_state import SessionState
from headway.member.worker.session_thread import SessionThread
from headway.member.worker.session_view import (
    TIMEOUTS,
    Denied,
    Forked,
    GenerationOver,
    Late,
    SessionError,
    SessionTimeouts,
    Unanswered,
    View,
)

CLOSE_SECONDS = 5.0
"""The thread ends within milliseconds, unless it is resolving the coordinator's name."""


class Session:
    def __init__(
        self,
        address: str,
        key: bytes,
        run: str,
        name: str,
        *,
        timeouts: SessionTimeouts = TIMEOUTS,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`log` is called when a coordinator and this worker refuse each other, or when there is
        none for long."""
        self.name = with_token(name)
        parsed = parse_address(address)
        WorkerSide(key, run, self.name)  # names that do not fit are refused here
        self._process = os.getpid()
        self._state = SessionState(self.name)
        self._follower = self._state.follower
        thread = SessionThread(self._state, parsed, key, run, timeouts, log)
        self._thread = threading.Thread(target=thread.run, name="headway-session", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What training reads. Never blocks.

    @property
    def view(self) -> View:
        self._check_process()
        return self._state.view

    def must_drop(self) -> bool:
        return self.view.must_drop

    # What training reports. Sent at once, and with every heartbeat.

    def be_ready(self) -> None:
        """Imports are done and the model is built: it could train now. Reported again after it was
        taken out of the run."""
        self._report(self._follower.be_ready)

    def leave(self) -> None:
        """Its machine is wanted back. It continues until there is a generation without it."""
        self._report(self._follower.leave)

    def enter(self, number: int | None = None) -> Generation:
        """Leaves all earlier generations, and waits for the others of the newest, which is
        returned. With a number, only if that is still the newest."""

        def change() -> None:
            if number in (None, self._follower.newest.number):
                self._follower.enter()

        return self._report(change)

    def healed(self) -> None:
        self._report(self._follower.healed)

    def complain(self, peers: tuple[str, ...] = ()) -> None:
        """The group could not be formed, or a collective failed or hangs."""
        self._report(lambda: self._follower.complain(peers))

    def start_waiting(self) -> None:
        """A collective takes long. That alone changes nothing: only a worker that is silent as well
        is given less time. Valid until `stop_waiting` or `enter`."""
        self._report(self._follower.start_waiting)

    def stop_waiting(self) -> None:
        """The collective has ended: it waits no longer."""
        self._report(self._follower.stop_waiting)

    def set_step_seconds(self, seconds: int) -> None:
        """Time of a step: for how long the others have to wait for this worker."""
        if seconds != self._state.view.status.step_seconds:
            self._report(lambda: self._follower.set_step_seconds(seconds))

    def wait_for(self, what: str, condition: Callable[[View], bool], seconds: float) -> View:
        """The first view for which the condition holds. `what` is for the error if none does."""
        self._check_process()
        state = self._state
        with state.changed:
            state.changed.wait_for(lambda: state.has_ended or condition(state.view), seconds)
            if condition(state.view):
                return state.view
            state.check_open()
            raise state.late(what, seconds)

    def ask(
        self, generation: int, make: Callable[[int], StoreRequest], seconds: float, what: str
    ) -> StoreAnswer:
        """The store's answer to the request that `make` makes of a number. Ends with an error as
        soon as the generation is broken, or when the time is over."""
        self._check_process()
        state, deadline = self._state, time.monotonic() + seconds
        with state.changed:

            def is_over() -> bool:
                return state.has_ended or state.view.generation.breaks(generation)

            def wait(condition: Callable[[], bool]) -> None:
                left = max(0.0, deadline - time.monotonic())
                state.changed.wait_for(lambda: condition() or is_over(), left)

            wait(lambda: state.has_room)
            state.check_open()
            state.check_generation(generation, what)
            if not state.has_room:
                raise state.late(f"room for {what}: {MAX_REQUESTS} requests are open", seconds)
            request = state.add(make)
            wait(lambda: request.answer is not None or request.is_lost)
            if request.answer is None and not request.is_lost:
                state.give_up(request)
                state.check_open()
                state.check_generation(generation, what)
                raise state.late(what, seconds)
        if request.answer is None:
            raise Unanswered(f"the connection to the coordinator broke during {what}")
        if isinstance(request.answer, StoreFailed):
            raise _denied(request.answer, what)
        return request.answer

    def goodbye(self, reason: str = "", seconds: float = 1.0) -> None:
        """The process ends now: tells the coordinator, if it can be reached, and closes."""
        self._check_process()
        state = self._state
        with state.changed:
            state.goodbye_by = time.monotonic() + seconds
            state.goodbye = reason
            if not state.has_ended:
                state.sleeper.wake()
        self._thread.join(seconds)
        self.close()

    def close(self) -> None:
        """Without a goodbye: to the coordinator it looks as if the process had died."""
        if os.getpid() != self._process:
            return  # the child's copies of the sockets are closed since the fork
        with self._state.changed:
            if not self._state.has_ended:
                self._state.sleeper.stop()
        self._thread.join(CLOSE_SECONDS)

    def _report(self, change: Callable[[], object]) -> Generation:
        self._check_process()
        state = self._state
        with state.changed:
            state.check_open()
            change()
            state.show()
            state.sleeper.wake()
            return state.view.generation

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise Forked(
                "this session belongs to the process that started it, not to a forked child",
                "start such processes by spawn, or before the session",
            )


def _denied(failed: StoreFailed, what: str) -> SessionError:
    why = failed.reason or failed.why
    match failed.why:
        case "late":
            return Late(f"{what}: {why}")
        case "generation":
            return GenerationOver(f"{what}: {why}")
    return Denied(f"{what}: {why}")
