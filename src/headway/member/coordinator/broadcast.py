"""Sends generations to thousands of sessions soon, without one holding up the others.

Nothing is queued for a session but answers to its own requests: it is known what each has, and it
is sent the difference to the current generation when it can take it. One that lags costs nothing,
and catches up in one message, whatever it has missed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Literal

from headway.clock import Clock
from headway.member.coordinator.connections import WorkerConnection
from headway.member.coordinator.decide import Membership
from headway.member.protocol.generation import Generation
from headway.member.protocol.messages import Alive, Go, Message, StoreAnswer, Welcome, difference
from headway.member.protocol.wire import ALIVE_SECONDS, PackedMessage, pack

SLICE_SECONDS = 0.01
"""Time spent on sending before incoming messages have their turn: some 500 sessions..."""
BETWEEN_SECONDS = 0.005
"""... and on incoming messages before sending has its turn again."""
QUIET_SECONDS = 0.7 * ALIVE_SECONDS
"""Time without a message after which a session is sent Alive..."""
QUIET_SHARE = 5
"""... and in each tick at most one in so many, so that all get it within half a second."""
STALL_SECONDS = 5.0
"""Time without progress in sending after which a connection is ended."""
MAX_UNSENT_BYTES = 8 * 2**20
"""Unsent bytes of one session: the largest list, and answers to all its requests."""
MAX_ALL_UNSENT_BYTES = 64 * 2**20
"""Unsent bytes of all sessions above which sending waits. The first list of 5,000 is 1 GB in
all."""
KEPT_BASES = 8
"""Generations from which differences are made. A session with an older one gets the whole list."""


class Broadcast:
    def __init__(
        self, membership: Membership, clock: Clock, drop: Callable[[WorkerConnection, str], None]
    ) -> None:
        """`drop` is called for a session that does not read what it is sent."""
        self.membership = membership
        self._clock = clock
        self._drop = drop
        self._loop = asyncio.get_running_loop()
        self._bases: OrderedDict[int, Generation] = OrderedDict()
        self._bases[membership.current.number] = membership.current
        self._packed: dict[tuple[str, int], PackedMessage] = {}
        """Messages about the current generation, by kind and by the generation a session has."""
        self._alive = pack(Alive())
        self._due: deque[WorkerConnection] = deque()
        self._is_pumping = False
        self._pumped = 0.0
        self._quiet: OrderedDict[WorkerConnection, None] = OrderedDict()
        """Open sessions, the longest without a message first."""
        self._stalled: dict[WorkerConnection, int] = {}
        """Stalled sessions, with their unsent bytes."""
        self._num_stalled_bytes = 0

    def add(self, connection: WorkerConnection) -> None:
        self._quiet[connection] = None

    def remove(self, connection: WorkerConnection) -> None:
        self._quiet.pop(connection, None)
        self._num_stalled_bytes -= self._stalled.pop(connection, 0)

    def publish(self, sessions: Iterable[WorkerConnection]) -> None:
        """The current generation is new. Its members are sent it before the others."""
        generation = self.membership.current
        self._bases[generation.number] = generation
        while len(self._bases) > KEPT_BASES:
            self._bases.popitem(last=False)
        self._packed.clear()
        members = frozenset(generation.workers())
        others = []
        for connection in sessions:
            if connection.worker in members:
                self._queue(connection)
            else:
                others.append(connection)
        for connection in others:
            self._queue(connection)

    def go(self, sessions: Iterable[WorkerConnection]) -> None:
        self._packed.clear()
        for connection in sessions:
            self._queue(connection)

    def tell(self, connection: WorkerConnection) -> None:
        """Sends the current generation to a session that is new, or does not seem to have it.
        Within a connection nothing is lost, so nothing is sent twice."""
        if connection.is_welcome:
            self._queue(connection)
            return
        number, now = self.membership.current.number, self._clock.monotonic()
        connection.is_welcome = True
        connection.known, connection.went = number, number if self.membership.went else 0
        self._write(connection, connection.seal(self._packed_for("welcome", connection.seen)), now)

    def send(self, connection: WorkerConnection, message: Message) -> None:
        self._write(connection, connection.seal(pack(message)), self._clock.monotonic())

    def send_soon(self, connection: WorkerConnection, answer: StoreAnswer) -> None:
        """For when one event answers many sessions."""
        connection.answers.append(answer)
        self._queue(connection)

    def stalled(self, connection: WorkerConnection) -> None:
        self._num_stalled_bytes -= self._stalled.get(connection, 0)
        self._stalled[connection] = connection.num_unsent_bytes
        self._num_stalled_bytes += self._stalled[connection]

    def writable(self, connection: WorkerConnection) -> None:
        self._num_stalled_bytes -= self._stalled.pop(connection, 0)
        if connection.is_welcome:
            self._queue(connection)

    def tick(self, now: float) -> None:
        """Ten times a second."""
        some = len(self._quiet) // QUIET_SHARE + 100
        for connection in list(islice(self._quiet, some)):
            if now < connection.sent + QUIET_SECONDS:
                break
            if connection.stalled is None:
                self._write(connection, connection.seal(self._alive), now)
            else:
                connection.sent = now
                self._quiet.move_to_end(connection)
        for connection, before in list(self._stalled.items()):
            if connection.num_unsent_bytes < before:
                self.stalled(connection)
                connection.stalled = now
            elif connection.stalled is not None and now > connection.stalled + STALL_SECONDS:
                self._drop(connection, "it does not read what it is sent")
        if self._due and not self._is_pumping:
            self._start_pumping()

    def share(self) -> None:
        """Called between reads. After a change all sessions send something at once; those that do
        not know of it yet should not have to wait for that."""
        if self._is_pumping and self._clock.monotonic() > self._pumped + BETWEEN_SECONDS:
            self._send_some()

    def _queue(self, connection: WorkerConnection) -> None:
        if not connection.is_queued:
            connection.is_queued = True
            self._due.append(connection)
        if not self._is_pumping:
            self._start_pumping()

    def _start_pumping(self) -> None:
        self._is_pumping = True
        self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._send_some()
        if self._due and self._num_stalled_bytes <= MAX_ALL_UNSENT_BYTES:
            self._loop.call_soon(self._pump)
        else:
            self._is_pumping = False

    def _send_some(self) -> None:
        deadline = self._clock.monotonic() + SLICE_SECONDS
        while self._due and self._num_stalled_bytes <= MAX_ALL_UNSENT_BYTES:
            now = self._clock.monotonic()
            if now > deadline:
                break
            connection = self._due.popleft()
            connection.is_queued = False
            if not connection.is_over:
                self._catch_up(connection, now)
        self._pumped = self._clock.monotonic()

    def _catch_up(self, connection: WorkerConnection, now: float) -> None:
        frames = [connection.seal(pack(answer)) for answer in connection.answers]
        connection.answers.clear()
        number = self.membership.current.number
        if connection.stalled is None and connection.is_welcome:
            if connection.known != number:
                frames.append(connection.seal(self._packed_for("change", connection.known)))
                connection.known = number
            if self.membership.went and connection.went != number:
                frames.append(connection.seal(self._packed_for("go", number)))
                connection.went = number
        if frames:
            self._write(connection, frames[0] if len(frames) == 1 else b"".join(frames), now)

    def _packed_for(self, kind: Literal["change", "go", "welcome"], base: int) -> PackedMessage:
        """The message for a session that has this generation; made once for all that have the
        same."""
        base = base if base in self._bases else 0
        packed = self._packed.get((kind, base))
        if packed is None:
            packed = pack(self._message(kind, base))
            self._packed[kind, base] = packed
        return packed

    def _message(self, kind: str, base: int) -> Message:
        current = self.membership.current
        if kind == "go":
            return Go(current.number)
        if kind == "welcome" and base == current.number:
            return Welcome(self.membership.incarnation, None, self.membership.went)
        change = difference(self._bases.get(base), current)
        if kind == "welcome":
            return Welcome(self.membership.incarnation, change, self.membership.went)
        return change

    def _write(self, connection: WorkerConnection, data: bytes, now: float) -> None:
        connection.write(data)
        connection.sent = now
        if connection in self._quiet:
            self._quiet.move_to_end(connection)
        if connection.stalled is not None and connection.num_unsent_bytes > MAX_UNSENT_BYTES:
            self._drop(connection, "it does not read what it is sent")
