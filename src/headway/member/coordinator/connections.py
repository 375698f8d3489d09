"""One TCP connection of a worker, and the acceptor of all of them.

A connection that has proven nothing costs little and is closed soon. Nothing is queued without
limit: what a connection has missed is looked up when it can take it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

from headway.clock import Clock
from headway.member.coordinator.rendezvous import Waiter
from headway.member.protocol.handshake import HANDSHAKE_SECONDS, CoordinatorSide
from headway.member.protocol.messages import FromWorker, ProtocolError, StoreAnswer
from headway.member.protocol.sockets import set_tcp_options
from headway.member.protocol.wire import PackedMessage

MAX_UNPROVEN = 2048
"""Connections without a proof at a time."""
MAX_UNPROVEN_OF_ADDRESS = 512
"""Connections without a proof from one address, behind which there may be many workers."""
GRACE_SECONDS = 0.5
"""Time in which a connection without a proof is not dropped for a later one."""
ACCEPTS_IN_A_ROW = 32
BACKLOG = 4096
"""Connections waiting in the kernel, when all members come back at once."""
READ_BYTES = 64 * 1024
"""Bytes read at a time: 600 heartbeats, which are decoded in 5 ms."""
KERNEL_BYTES = 32 * 1024
"""Send buffer of each connection; the kernel takes twice that. Without a limit it would buffer the
whole list for thousands at once, more than a gigabyte, and their deadlines would run meanwhile."""
HIGH_WATER_BYTES = 16 * 1024
"""Unsent bytes beyond it above which a connection gets nothing but answers."""


class ConnectionHandler(Protocol):
    """What a connection reports to: `Sessions`."""

    clock: Clock
    buffer: memoryview
    """Buffer shared by all connections: it is emptied before the next read begins."""

    def received(self, connection: WorkerConnection, messages: list[FromWorker]) -> None: ...
    def wrong(self, connection: WorkerConnection, error: ProtocolError) -> None: ...
    def stalled(self, connection: WorkerConnection) -> None: ...
    def writable(self, connection: WorkerConnection) -> None: ...
    def lost(self, connection: WorkerConnection, error: Exception | None) -> None: ...


class WorkerConnection(asyncio.BufferedProtocol):
    __slots__ = (
        "address",
        "answers",
        "is_open",
        "is_over",
        "is_queued",
        "is_welcome",
        "known",
        "number",
        "owner",
        "seen",
        "sent",
        "side",
        "since",
        "stalled",
        "task",
        "transport",
        "waiting",
        "went",
    )

    def __init__(
        self, owner: ConnectionHandler, side: CoordinatorSide, number: int, address: str, now: float
    ) -> None:
        self.owner = owner
        self.side = side
        self.number = number
        """Number of the session."""
        self.address = address
        self.since = now
        self.transport: asyncio.Transport | None = None
        self.task: asyncio.Task[object] | None = None
        self.is_open = False
        """Whether its first Heartbeat has come: it is a session that the membership knows."""
        self.is_welcome = False
        """Whether its first Heartbeat has been answered."""
        self.is_over = False
        """Whether we have closed it: what still comes is ignored."""
        self.seen = 0
        """Generation that its first Heartbeat says it has."""
        self.known = 0
        """Generation it has, or is being sent."""
        self.went = 0
        """Generation for which it has been sent Go."""
        self.sent = now
        """When something was last sent."""
        self.stalled: float | None = None
        """Since when it does not read what is sent."""
        self.is_queued = False
        """Whether it is queued to be sent what it does not know yet."""
        self.answers: list[StoreAnswer] = []
        """Answers for the next round."""
        self.waiting: dict[int, Waiter] = {}
        """Open requests to the store."""

    @property
    def worker(self) -> str:
        return self.side.worker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        if self.is_over:
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.owner.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self.is_over:
            return
        messages, reply, error = self.side.receive(bytes(self.owner.buffer[:nbytes]))
        if reply:
            self.write(reply)
        if messages:
            self.owner.received(self, messages)
        if error is not None:
            self.owner.wrong(self, error)

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def seal(self, packed: PackedMessage) -> bytes:
        """Empty for a connection that has violated the protocol: what came before still counts, but
        is not answered."""
        return self.side.seal(packed) if self.side.is_open else b""

    @property
    def num_unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def pause_writing(self) -> None:
        # Its messages are still read: or it would be taken for silent.
        self.stalled = self.owner.clock.monotonic()
        self.owner.stalled(self)

    def resume_writing(self) -> None:
        self.stalled = None
        self.owner.writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.owner.lost(self, exc)

    def close(self) -> None:
        """Closes after what was written is sent."""
        self.is_over = True
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        self.is_over = True
        if self.transport is not None:
            self.transport.abort()
        elif self.task is not None:
            self.task.cancel()


class Acceptor:
    """Accepts connections, and closes those that prove nothing in time.

    At the limit the oldest one is dropped: an honest worker proves the key in milliseconds, so an
    old connection is most likely a stranger's. If even the oldest is young, the others wait in the
    kernel.
    """

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[str, float], WorkerConnection],
        clock: Clock,
    ) -> None:
        self._listening = listening
        self._make = make
        self._clock = clock
        self._unproven: dict[WorkerConnection, None] = {}
        """The oldest first."""
        self._by_address: dict[str, dict[WorkerConnection, None]] = {}
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    @property
    def num_unproven(self) -> int:
        return len(self._unproven)

    def open(self) -> None:
        if not self._is_closed:
            self._listening.listen(BACKLOG)
            self._loop.add_reader(self._listening, self._accept)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for connection in list(self._unproven):
            self.forget(connection)
            connection.abort()

    def forget(self, connection: WorkerConnection) -> None:
        """The connection has proven the key, or is closed."""
        if connection not in self._unproven:
            return
        del self._unproven[connection]
        of_address = self._by_address[connection.address]
        del of_address[connection]
        if not of_address:
            del self._by_address[connection.address]

    def expire(self, now: float) -> None:
        for connection in list(self._unproven):
            if now < connection.since + HANDSHAKE_SECONDS:
                break
            self._drop(connection)

    def _accept(self) -> None:
        now = self._clock.monotonic()
        for _ in range(ACCEPTS_IN_A_ROW):
            if len(self._unproven) >= MAX_UNPROVEN:
                oldest = next(iter(self._unproven))
                if now < oldest.since + GRACE_SECONDS:
                    self._pause(oldest.since + GRACE_SECONDS - now)
                    return
                self._drop(oldest)
            try:
                accepted, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                # No more files or memory: existing members have precedence.
                self._pause(1.0)
                return
            self._admit(accepted, str(peer[0]), now)

    def _admit(self, accepted: socket.socket, address: str, now: float) -> None:
        of_address = self._by_address.get(address, {})
        if len(of_address) >= MAX_UNPROVEN_OF_ADDRESS:
            oldest = next(iter(of_address))
            if now < oldest.since + GRACE_SECONDS:
                accepted.close()
                return
            self._drop(oldest)
        try:
            accepted.setblocking(False)
            set_tcp_options(accepted)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        except OSError:
            accepted.close()  # closed already
            return
        connection = self._make(address, now)
        self._unproven[connection] = None
        self._by_address.setdefault(address, {})[connection] = None
        connection.task = self._loop.create_task(self._connect(connection, accepted))

    async def _connect(self, connection: WorkerConnection, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: connection, accepted)
        except (OSError, asyncio.CancelledError):
            # The connection was dropped meanwhile.
            self.forget(connection)
        finally:
            connection.task = None

    def _drop(self, connection: WorkerConnection) -> None:
        self.forget(connection)
        connection.abort()

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listening)
        self._loop.call_later(seconds, self.open)
