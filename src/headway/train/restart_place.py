"""The place of a worker that ends with its generation, in the one that it is in. Without torch:
whatever it runs, it waits for its place in the same way."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from headway.errors import Exit, PeerLost, Stopped
from headway.member.protocol.generation import Generation
from headway.member.protocol.identity import without_tokens
from headway.member.worker.session import Session
from headway.member.worker.session_view import Late, View
from headway.train.stop_request import StopRequest
from headway.train.worker_log import log_exit_reason

PLACE_SECONDS = 1.0
"""Between two looks at what else has happened, while it waits for a place."""


class StoppedWithoutPlace(Stopped):
    """The run is to stop, and this worker has no part in its save. STOPPED would tell the launcher
    that all is saved, while the members are still at it."""

    exit_code = Exit.GENERATION_OVER


class EndedWithGeneration(PeerLost):
    """Its generation was over before all had entered it."""

    exit_code = Exit.GENERATION_OVER


class RestartPlace:
    def __init__(self, session: Session, stop: StopRequest) -> None:
        self.session, self.stop = session, stop
        self.generation: Generation | None = None
        self.place_seconds = 0.0
        """Time that `wait_for_place` took."""

    def wait_for_place(self) -> Generation:
        """The generation that this worker is in, once all its members have entered it. Stopped: it
        was asked to stop or to leave, and has no place yet. With a place it stays until the first
        step: the others may be on their way into it, and would wait for a worker that is gone."""
        began = time.monotonic()
        while self.generation is not None or not (self.stop.asked or self.stop.leave_asked):
            view = self.session.view
            if self.generation is not None and is_lost(view):
                raise EndedWithGeneration(restarting(view.generation))
            if view.domain is None and not view.status.ready:
                self.session.be_ready()
            with suppress(Late):
                if view.status.entered:
                    view = self.session.wait_for("all others", _is_decided, PLACE_SECONDS)
                    assert self.generation is not None
                    if view.may_form:
                        self.place_seconds = time.monotonic() - began
                        return self.generation
                    continue
                self.session.wait_for(
                    "a place in the run", lambda v: v.domain is not None, PLACE_SECONDS
                )
                self._enter()
        self.close("asked to end")
        kind = StoppedWithoutPlace if self.stop.asked else Stopped
        raise kind("asked to end before it had a place in the run")

    def _enter(self) -> None:
        view = self.session.view
        if view.domain is not None:
            generation = self.session.enter(view.generation.number)
            if self.session.view.status.entered == generation.number:
                self.generation = generation

    def place(self) -> tuple[int, int]:
        """Its rank in its generation, and the number of workers. Those of a node follow each other,
        and so do the nodes of a domain."""
        assert self.generation is not None
        workers = list(self.generation.workers())
        return workers.index(self.session.name), len(workers)

    def close(self, reason: str) -> None:
        self.session.goodbye(reason)


def is_lost(view: View) -> bool:
    """Whether its generation has lost a member."""
    return view.generation.breaks(view.status.entered) if view.status.entered else False


def end_process(generation: Generation) -> None:
    """At once, wherever its threads wait."""
    log_exit_reason(restarting(generation))
    os._exit(Exit.GENERATION_OVER)


def restarting(generation: Generation) -> str:
    return f"restarting: {without_tokens(generation.reason)}"


def _is_decided(view: View) -> bool:
    return view.may_form or is_lost(view)
