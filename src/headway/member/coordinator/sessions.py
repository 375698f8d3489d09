"""Sessions of workers: opened by the first heartbeat, answered, and ended with a reason."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Callable

from headway import __version__
from headway.clock import Clock
from headway.member.coordinator.broadcast import Broadcast
from headway.member.coordinator.connections import READ_BYTES, Acceptor, WorkerConnection
from headway.member.coordinator.decide import Membership
from headway.member.coordinator.events import (
    Event,
    GoodbyeReceived,
    SessionEnded,
    SessionOpened,
    StatusReceived,
)
from headway.member.coordinator.history import History
from headway.member.coordinator.rendezvous import Rendezvous
from headway.member.protocol.handshake import CoordinatorSide
from headway.member.protocol.identity import parse
from headway.member.protocol.messages import (
    MAX_REQUESTS,
    Farewell,
    FromWorker,
    Goodbye,
    Heartbeat,
    ProtocolError,
    StoreAnswer,
    StoreRequest,
)
from headway.member.protocol.status import WorkerStatus

TIMEOUTS = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
REPLACED = "another worker has taken its place"
FAREWELL_SECONDS = 2.0
"""For a session to take the last message."""


def other_headway(version: str) -> str:
    """Why a worker with this version of Headway is refused."""
    return f"the worker has Headway {version[:64] or '?'}, and the coordinator {__version__}"


class Sessions:
    def __init__(
        self,
        run: str,
        key: bytes,
        membership: Membership,
        clock: Clock,
        history: History,
        counts: Counter[str],
        handle: Callable[[Event], None],
    ) -> None:
        """`handle` is called with what happens to sessions."""
        self.clock = clock
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.broadcast = Broadcast(membership, clock, self.end)
        self.rendezvous = Rendezvous()
        self.acceptor: Acceptor | None = None
        self._run = run
        self._key = key
        self._incarnation = membership.incarnation
        self._history = history
        self._counts = counts
        self._handle = handle
        self._num_connections = 0
        self._open: dict[int, WorkerConnection] = {}
        """Sessions that the membership knows."""
        self._gone: set[str] = set()
        """Nodes that have been replaced."""
        self._closing: dict[WorkerConnection, float] = {}
        """Until when each may take its last message."""

    def __len__(self) -> int:
        return len(self._open)

    def listen(self, listening: socket.socket) -> None:
        self.acceptor = Acceptor(listening, self._connection, self.clock)
        self.acceptor.open()

    def tick(self, now: float) -> None:
        assert self.acceptor is not None
        self.acceptor.expire(now)
        self.rendezvous.expire(now)
        self.broadcast.tick(now)
        for connection in list(self._closing):
            if now < self._closing[connection]:
                break
            connection.abort()

    async def farewell(self, reason: str) -> None:
        """Ends all of them."""
        assert self.acceptor is not None
        self.acceptor.close()
        for count, connection in enumerate(list(self._open.values())):
            self.end(connection, reason)
            if count % 500 == 499:
                await asyncio.sleep(0)
        deadline = self.clock.monotonic() + FAREWELL_SECONDS
        while self._closing and self.clock.monotonic() < deadline:
            await asyncio.sleep(0.02)
        for connection in list(self._closing):
            connection.abort()
        await asyncio.sleep(0)

    # What the membership decides

    def publish(self) -> None:
        self.broadcast.publish(self._open.values())

    def publish_go(self) -> None:
        self.broadcast.go(self._open.values())

    def update(self, number: int) -> None:
        if number in self._open:
            self.broadcast.tell(self._open[number])

    def close(self, number: int, reason: str) -> None:
        if number in self._open:
            self.end(self._open[number], reason)

    def dismiss(self, node: str) -> None:
        """Ends the sessions of a node, and refuses every later one."""
        self._gone.add(node)
        for connection in list(self._open.values()):
            if parse(connection.worker).node == node:
                self.end(connection, REPLACED)

    # What connections report

    def _connection(self, address: str, now: float) -> WorkerConnection:
        self._num_connections += 1
        side = CoordinatorSide(self._key, self._run, self._incarnation)
        return WorkerConnection(self, side, self._num_connections, address, now)

    def received(self, connection: WorkerConnection, messages: list[FromWorker]) -> None:
        num_requests = 0
        for message in messages:
            if isinstance(message, Heartbeat):
                self._counts["beats"] += 1
                if connection.is_open:
                    self._handle(
                        StatusReceived(connection.worker, connection.number, message.status)
                    )
                else:
                    self._opened(connection, message.status)
            elif not connection.is_open:
                self.wrong(connection, ProtocolError("the first message is not a Heartbeat"))
            elif isinstance(message, Goodbye):
                self._handle(GoodbyeReceived(connection.worker, connection.number))
                self.end(connection, "goodbye")
            else:
                num_requests += 1
                # None of these can have been asked after an answer to another of them.
                if num_requests + len(connection.waiting) > MAX_REQUESTS:
                    error = f"more than {MAX_REQUESTS} requests are open"
                    self.wrong(connection, ProtocolError(error))
                else:
                    self._ask(connection, message)
            if connection.is_over:
                return
        self.broadcast.share()

    def _opened(self, connection: WorkerConnection, status: WorkerStatus) -> None:
        if parse(connection.worker).node in self._gone:
            self.end(connection, REPLACED)
            return
        if status.headway not in ("", __version__):
            self._refuse(connection, other_headway(status.headway))
            return
        assert self.acceptor is not None
        self.acceptor.forget(connection)
        self._counts["opened"] += 1
        self._history.note(connection.worker, f"opened session {connection.number}")
        self._open[connection.number] = connection
        connection.is_open = True
        connection.seen = status.seen
        self.broadcast.add(connection)
        self._handle(SessionOpened(connection.worker, connection.number, status))

    def _refuse(self, connection: WorkerConnection, why: str) -> None:
        self._history.refused(connection.address, why)
        self.end(connection, why)

    def _ask(self, connection: WorkerConnection, request: StoreRequest) -> None:
        self._counts["requests"] += 1
        number, is_later = request.request, False

        def reply(answer: StoreAnswer) -> None:
            if is_later:
                # One value may be what thousands wait for.
                connection.waiting.pop(number, None)
                self.broadcast.send_soon(connection, answer)
            else:
                self.broadcast.send(connection, answer)

        if number in connection.waiting:
            self.wrong(connection, ProtocolError(f"request {number} is open already"))
            return
        now = self.clock.monotonic()
        waiter = self.rendezvous.handle(request, connection.worker, now, reply)
        if waiter is not None:
            is_later = True
            connection.waiting[number] = waiter

    def wrong(self, connection: WorkerConnection, error: ProtocolError) -> None:
        """Nothing more is read from it or sent to it."""
        hint = f"; {error.hint}" if error.hint else ""
        self._history.refused(connection.address, f"{error.message}{hint}")
        self._leave(connection, f"was refused: {error.message}")
        connection.close()
        self._closing[connection] = self.clock.monotonic() + FAREWELL_SECONDS

    def stalled(self, connection: WorkerConnection) -> None:
        self.broadcast.stalled(connection)

    def writable(self, connection: WorkerConnection) -> None:
        self.broadcast.writable(connection)

    def lost(self, connection: WorkerConnection, error: Exception | None) -> None:
        self._closing.pop(connection, None)
        is_timeout = isinstance(error, OSError) and error.errno in TIMEOUTS
        self._leave(connection, "timed out" if is_timeout else "closed", is_silence=is_timeout)

    def end(self, connection: WorkerConnection, reason: str) -> None:
        """Says so, and closes."""
        if connection.is_over:
            return
        if connection.side.is_open:
            connection.write(connection.side.send(Farewell(reason)))
        connection.close()
        self._closing[connection] = self.clock.monotonic() + FAREWELL_SECONDS
        self._leave(connection, f"ended: {reason}")

    def _leave(self, connection: WorkerConnection, why: str, is_silence: bool = False) -> None:
        """The session is over. One that timed out may still be open at the other end: it counts as
        silent, which leaves it time to be back when the network is."""
        connection.is_over = True
        if self.acceptor is not None:
            self.acceptor.forget(connection)
        if self._open.pop(connection.number, None) is None:
            return
        self._history.note(connection.worker, f"session {connection.number} {why}")
        self.broadcast.remove(connection)
        for waiter in connection.waiting.values():
            self.rendezvous.cancel(waiter)
        connection.waiting.clear()
        if not is_silence:
            self._handle(SessionEnded(connection.worker, connection.number))
