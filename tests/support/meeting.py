"""A coordinator that makes the generations a test asks for, and keeps the store that their members
form groups by."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from headway.member.events import Status
from headway.member.generation import Domain, Generation
from headway.member.messages import Beat, FromWorker, Go, Goodbye
from headway.member.rendezvous import Rendezvous
from headway.member.wire import CoordinatorSide
from support.small_coordinator import SmallCoordinator


class Meeting(SmallCoordinator):
    def __init__(self) -> None:
        self.rendezvous = Rendezvous()
        self.statuses: dict[str, Status] = {}
        """The newest of each pod."""
        self.is_holding = False
        """Whether nobody hears that all have come."""
        self._went = 0
        super().__init__()

    def gather(
        self,
        *domains: Sequence[str],
        leader: int = 0,
        holds: bool = True,
        paused: bool = False,
        sound: tuple[int, ...] = (),
        reason: str = "somebody is ready",
    ) -> int:
        """A new generation of these; its number."""
        with self._lock:
            number = self.generation.number + 1
            made = tuple(Domain(tuple(pods), number, holds) for pods in domains)
            self.rendezvous.open(number, [pod for pods in domains for pod in pods])
            self.publish(Generation(number, self.incarnation, made, leader, paused, sound, reason))
            self._let_go()
        return number

    def release(self) -> None:
        with self._lock:
            self.is_holding = False
            self._let_go()

    def status(self, pod: str) -> Status:
        return self.statuses.get(pod, Status())

    def _let_go(self) -> None:
        number, pods = self.generation.number, list(self.generation.pods())
        all_came = pods and all(self.status(pod).entered == number for pod in pods)
        if all_came and self._went < number and not self.is_holding:
            self._went = number
            self.tell(Go(number))

    def _hear(
        self, connection: socket.socket, side: CoordinatorSide, message: FromWorker, is_first: bool
    ) -> None:
        super()._hear(connection, side, message, is_first)
        if isinstance(message, Beat):
            self.statuses[side.pod] = message.status
            self._let_go()
        elif not isinstance(message, Goodbye):
            self.rendezvous.handle(
                message,
                side.pod,
                time.monotonic(),
                lambda answer: connection.sendall(side.send(answer)),
            )
