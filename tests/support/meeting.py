"""A coordinator that makes the generations a test asks for, and keeps the store that their members
form groups by."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Timer

from headway.member.coordinator.rendezvous import Rendezvous
from headway.member.protocol.generation import Domain, Generation
from headway.member.protocol.handshake import CoordinatorSide
from headway.member.protocol.messages import FromWorker, Go, Goodbye, Heartbeat, StoreSet
from headway.member.protocol.status import WorkerStatus
from support.small_coordinator import SmallCoordinator


class Meeting(SmallCoordinator):
    def __init__(self) -> None:
        self.rendezvous = Rendezvous()
        self.num_set = 0
        """Keys that workers have set."""
        self.statuses: dict[str, WorkerStatus] = {}
        """The newest of each worker."""
        self.is_holding = False
        """Whether nobody hears that all have come."""
        self._went = 0
        super().__init__()

    def gather(
        self,
        *domains: Sequence[str],
        leader: int = 0,
        lacking: Sequence[str] = (),
        paused: bool = False,
        sound: tuple[int, ...] = (),
        reason: str = "somebody is ready",
    ) -> int:
        """A new generation of these; its number. `lacking`: workers that are known to lack the
        run's state."""
        with self._lock:
            number = self.generation.number + 1
            since = {domain.workers: domain.since for domain in self.generation.domains}
            made = tuple(
                Domain(
                    tuple(workers),
                    since.get(tuple(workers), number),
                    holds=workers[0] not in lacking,
                )
                for workers in domains
            )
            self.rendezvous.open(number, [worker for workers in domains for worker in workers])
            self.publish(Generation(number, self.incarnation, made, leader, paused, sound, reason))
            self._let_go()
        return number

    def release(self) -> None:
        with self._lock:
            self.is_holding = False
            self._let_go()

    def status(self, worker: str) -> WorkerStatus:
        return self.statuses.get(worker, WorkerStatus())

    def _let_go(self) -> None:
        number, workers = self.generation.number, list(self.generation.workers())
        all_came = workers and all(self.status(worker).entered == number for worker in workers)
        if all_came and self._went < number and not self.is_holding:
            self._went = number
            self.tell(Go(number))

    def _hear(
        self, connection: socket.socket, side: CoordinatorSide, message: FromWorker, is_first: bool
    ) -> None:
        super()._hear(connection, side, message, is_first)
        if isinstance(message, Heartbeat):
            self.statuses[side.worker] = message.status
            self._let_go()
        elif not isinstance(message, Goodbye):
            self.num_set += isinstance(message, StoreSet)
            waiter = self.rendezvous.handle(
                message,
                side.worker,
                time.monotonic(),
                lambda answer: connection.sendall(side.send(answer)),
            )
            if waiter is not None:
                timer = Timer(waiter.request.wait_seconds, self._expire)
                timer.daemon = True
                timer.start()

    def _expire(self) -> None:
        with self._lock, suppress(OSError):  # those that waited may have gone
            self.rendezvous.expire(time.monotonic())
