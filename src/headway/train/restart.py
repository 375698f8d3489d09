"""The world of a worker that ends with its generation (`elastic: restart` with a coordinator).

A worker is in one generation in its life. When that is over, a thread ends the process at once,
wherever it waits: NCCL does not notice that a peer is dead. Its launcher forks another worker for
the next generation, which resumes from the newest checkpoint. If the change was planned, all save
first, and exit together.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from headway.errors import Exit, PeerLost
from headway.member.protocol.identity import without_tokens
from headway.member.worker.session import Session
from headway.member.worker.session_view import Late, SessionClosed
from headway.train.collectives import WaitTimer
from headway.train.live import SLOW_COLLECTIVE_SECONDS, WATCH_SECONDS
from headway.train.restart_place import RestartPlace, end_process, is_lost
from headway.train.stop_request import StopRequest
from headway.train.watchdog import MAX_HANGS, abort
from headway.train.world import World

MEET_SECONDS = 30.0
"""Wait, once all is saved, for the others to have come as far. One that is suspended there would
hold up the others until the collective times out."""
DECISION_SECONDS = 5.0
"""Wait, after a collective failed here, for the coordinator to say who is lost."""


class RestartWorlds(RestartPlace):
    """Waits for a place in a generation, which is then the only world of this process."""

    has_state = is_paused = False
    saves_before_change = True
    restarts_because: str | None = None

    def __init__(self, session: Session, stop: StopRequest) -> None:
        super().__init__(session, stop)
        self.timer = WaitTimer()
        """Knows since when this worker waits in a collective."""
        self._world: World | None = None
        self._is_waiting = False
        self._follows = True
        """Whether the end of its generation ends this process."""
        self._thread = threading.Thread(
            target=self._watch_session, name="headway-worlds", daemon=True
        )
        self._thread.start()

    def begin(self, world: World) -> None:
        self._world = world

    # Called by training

    @property
    def num_newer_generations(self) -> int:
        status = self.session.view.status
        return status.seen - status.entered

    @property
    def is_leaving(self) -> bool:
        return self.session.view.status.leaving

    @property
    def reason(self) -> str:
        return "" if self.generation is None else without_tokens(self.generation.reason)

    @property
    def worker_names(self) -> list[str]:
        workers = [] if self.generation is None else self.generation.workers()
        return [without_tokens(worker) for worker in workers]

    def report_hang(self, times: int) -> None:
        if times >= MAX_HANGS:
            abort()  # counts as a lost worker: all restart

    def report_state(self) -> None:
        self.session.healed()

    def report_step_seconds(self, seconds: float) -> None:
        self.session.set_step_seconds(math.ceil(seconds))

    def next(self, is_wanted: Callable[[], bool]) -> World | None:
        """The only world, and None after it."""
        world, self._world = self._world, None
        return world

    def wait_for_change(self, is_wanted: Callable[[], bool]) -> None:
        raise AssertionError("a generation with too few members is never made")

    def end_world(self, lost: PeerLost) -> None:
        raise lost

    def wait_for_decision(self) -> None:
        """A collective has failed here. The coordinator soon knows who is lost, and the thread ends
        this process; if not, it is this worker that has lost the others."""
        time.sleep(DECISION_SECONDS)

    def finish(self, world: World) -> None:
        """COLLECTIVE. All is saved: from now on nobody is ended by the exit of another one."""
        self._follows = False

        def meet() -> None:
            with suppress(PeerLost):
                world.barrier()

        meeting = threading.Thread(target=meet, name="headway-meet", daemon=True)
        meeting.start()
        meeting.join(MEET_SECONDS)

    @property
    def exit_code(self) -> Exit | None:
        """Instead of STOPPED, where the launcher is to start a successor."""
        is_over = self.num_newer_generations > 0 and not self.stop.asked
        return Exit.GENERATION_OVER if is_over and not self.is_leaving else None

    def close(self, reason: str) -> None:
        self._follows = False
        super().close(reason)

    # The thread

    def _watch_session(self) -> None:
        with suppress(SessionClosed):  # by `close`, at any time
            while self._follows:
                with suppress(Late):
                    self.session.wait_for("a change", is_lost, WATCH_SECONDS)
                view = self.session.view
                if self._follows and is_lost(view):
                    end_process(view.generation)
                if self.stop.leave_asked and not view.status.leaving:
                    self.session.leave()
                self._report_waiting()

    def _report_waiting(self) -> None:
        is_waiting = self.timer.seconds >= SLOW_COLLECTIVE_SECONDS
        if is_waiting != self._is_waiting:
            self._is_waiting = is_waiting
            if is_waiting:
                self.session.start_waiting()
            else:
                self.session.stop_waiting()
