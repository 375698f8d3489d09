"""The coordinator's process: sessions in, generations out, each written before it is published.

One loop in one thread, and another thread for the record. `Membership` decides; here it is told
what happens, and what it decides is done.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

from headway.clock import Clock
from headway.errors import RunFailed
from headway.member.coordinator.connections import WorkerConnection
from headway.member.coordinator.decide import Membership
from headway.member.coordinator.decision_schedule import DecisionSchedule
from headway.member.coordinator.events import (
    CloseSession,
    Decision,
    Event,
    PublishGeneration,
    PublishGo,
    StepDown,
    UpdateSession,
    WorkerDismissed,
    WriteGeneration,
)
from headway.member.coordinator.history import History
from headway.member.coordinator.record import Entry, GenerationRecord
from headway.member.coordinator.record_keeper import RecordKeeper
from headway.member.coordinator.rules import Rules
from headway.member.coordinator.sessions import Sessions
from headway.member.protocol.generation import Generation
from headway.member.protocol.identity import parse

TICK_SECONDS = 0.1


class CoordinatorServer:
    def __init__(
        self,
        run: str,
        key: bytes,
        rules: Rules,
        record: GenerationRecord,
        claimed: Entry,
        clock: Clock,
        log: Callable[[str], None],
    ) -> None:
        current = claimed.generation
        self.run = run
        self.clock = clock
        self.began = clock.monotonic()
        self.membership = Membership(rules, claimed.incarnation, current, self.began)
        self.history = History(clock, current)
        self.counts: Counter[str] = Counter()
        self.record = RecordKeeper(record, claimed, log)
        self.sessions = Sessions(
            run, key, self.membership, clock, self.history, self.counts, self.handle
        )
        self.sessions.rendezvous.open(current.number, list(current.workers()))
        self.lag_seconds = 0.0
        """Longest delay of the loop, lately."""
        self._schedule = DecisionSchedule(self.membership, clock, self._act)
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[str] = self._loop.create_future()
        """Why another coordinator has to take over."""
        self._is_ending = False

    async def serve(self, listening: socket.socket, stop: asyncio.Event) -> None:
        """Until `stop` is set. Raises RunFailed when another coordinator has to take over."""
        self.sessions.listen(listening)
        self._loop.set_exception_handler(self._failed)
        stopping = self._loop.create_task(stop.wait())
        tasks = [
            self._loop.create_task(self.record.keep(self.handle, self._step_down)),
            self._loop.create_task(self._keep_ticking()),
        ]
        for task in tasks:
            task.add_done_callback(self._ended)
        self._schedule.update()
        waits: list[asyncio.Future[Any]] = [self._over, stopping]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            reason = self._over.result() if self._over.done() else ""
            # Sessions close now: the membership must not take all of them for lost.
            self._is_ending = True
            self._schedule.stop()
            await self.sessions.farewell(reason or "the coordinator stops")
            if reason:
                raise RunFailed(f"this coordinator steps down: {reason}")
        finally:
            assert self.sessions.acceptor is not None
            self.sessions.acceptor.close()
            for each in (stopping, *tasks):
                each.cancel()

    def dismiss(self, node: str) -> None:
        """Others have replaced the workers of this node. They may only have been cut off: if they
        connect again, they are refused."""
        for worker in [name for name in self.membership.workers if parse(name).node == node]:
            self.handle(WorkerDismissed(worker))
        self.sessions.dismiss(node)

    def handle(self, event: Event) -> None:
        if self._is_ending:
            return
        decisions = self.membership.handle(event, self.clock.monotonic())
        if decisions:
            self._act(decisions)
        self._schedule.update()

    def _act(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            match decision:
                case WriteGeneration(generation):
                    self.record.write_soon(generation)
                case PublishGeneration(generation):
                    self._publish(generation)
                case PublishGo():
                    self.sessions.publish_go()
                case UpdateSession(number):
                    self.sessions.update(number)
                case CloseSession(number, reason):
                    self.sessions.close(number, reason)
                case StepDown(reason):
                    self._step_down(reason)

    def _publish(self, generation: Generation) -> None:
        self.history.published(generation)
        self.sessions.rendezvous.open(generation.number, list(generation.workers()))
        self.sessions.publish()
        self._log(
            f"generation {generation.number}: {len(generation.domains)} domains"
            f"{', paused' if generation.paused else ''}; {generation.reason}"
        )

    def _step_down(self, reason: str) -> None:
        if not self._over.done():
            self._over.set_result(reason)

    async def _keep_ticking(self) -> None:
        due = self._loop.time()
        while True:
            due = max(due + TICK_SECONDS, self._loop.time())
            await asyncio.sleep(due - self._loop.time())
            # The longest of the last minute or so: it fades.
            self.lag_seconds = max(0.999 * self.lag_seconds, self._loop.time() - due)
            self.sessions.tick(self.clock.monotonic())

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._over.done():
            self._over.set_exception(error)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A defect of ours. A coordinator that restarts from its record is sound again, and one
        that continues in an unknown state is not. But a stranger must not be able to stop the run:
        a defect in a connection that is no session costs that connection only, which is closed."""
        error = context.get("exception") or RunFailed(str(context.get("message")))
        connection = context.get("protocol")
        is_of_session = isinstance(connection, WorkerConnection) and connection.is_open
        if ("handle" in context or is_of_session) and not self._over.done():
            self._over.set_exception(error)
            return
        self.counts["defects"] += 1
        self._log(f"a connection was closed by a defect of the coordinator: {error!r}")
