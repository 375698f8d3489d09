"""What sessions are told, and how thousands of them hear it soon without holding each other up.

Nothing is queued for a session but answers to its own requests: each knows what it has, and is sent
the difference to what there is when it can take it. One that lags costs nothing, and catches up in
one message, whatever it has missed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Literal

from headway.clock import Clock
from headway.member.connection import Connection
from headway.member.generation import Generation
from headway.member.machine import Machine
from headway.member.messages import Alive, Go, Message, StoreAnswer, Welcome, difference
from headway.member.wire import ALIVE_SECONDS, Packed, pack

SLICE_SECONDS = 0.01
"""Spent on news before what has come in has its turn: some 500 sessions..."""
BETWEEN_SECONDS = 0.005
"""... and on what has come in before it is the turn of news again."""
QUIET_SECONDS = 0.7 * ALIVE_SECONDS
"""After so long without news a session hears that all is well..."""
QUIET_SHARE = 5
"""... and at most one in so many in each tick, so that all have heard it within half a second."""
STALL_SECONDS = 5.0
"""Nothing was taken for so long: the connection is ended."""
MAX_UNSENT_BYTES = 8 * 2**20
"""Of one session: the largest list, and answers to all its requests."""
MAX_ALL_UNSENT_BYTES = 64 * 2**20
"""Of all: above it, news waits until some is taken. The first list of 5,000 is 1 GB in all."""
KEPT_BASES = 8
"""Generations from which differences are made. Whoever has an older one gets the whole list."""


class News:
    def __init__(
        self, machine: Machine, clock: Clock, drop: Callable[[Connection, str], None]
    ) -> None:
        """`drop` is called for a session that does not take what it is sent."""
        self.machine = machine
        self.announce_seconds = 0.0
        """That the newest generation took to be sent to all."""
        self._clock = clock
        self._drop = drop
        self._loop = asyncio.get_running_loop()
        self._bases: OrderedDict[int, Generation] = OrderedDict()
        self._bases[machine.current.number] = machine.current
        self._packed: dict[tuple[str, int], Packed] = {}
        """What many sessions are sent about the current generation, by what they have."""
        self._alive = pack(Alive())
        self._due: deque[Connection] = deque()
        self._is_pumping = False
        self._pumped = 0.0
        self._published: float | None = None
        """When the newest generation was; None once all have been sent it."""
        self._quiet: OrderedDict[Connection, None] = OrderedDict()
        """Open sessions, the longest without a message first."""
        self._stalled: dict[Connection, int] = {}
        """With how much they had not taken."""
        self._num_stalled_bytes = 0

    def add(self, connection: Connection) -> None:
        self._quiet[connection] = None

    def remove(self, connection: Connection) -> None:
        self._quiet.pop(connection, None)
        self._num_stalled_bytes -= self._stalled.pop(connection, 0)

    def publish(self, sessions: Iterable[Connection]) -> None:
        """The machine's current generation is a new one. Its members hear it before the others."""
        generation = self.machine.current
        self._bases[generation.number] = generation
        while len(self._bases) > KEPT_BASES:
            self._bases.popitem(last=False)
        self._packed.clear()
        self._published = self._clock.monotonic()
        members = frozenset(generation.pods())
        others = []
        for connection in sessions:
            if connection.pod in members:
                self._queue(connection)
            else:
                others.append(connection)
        for connection in others:
            self._queue(connection)

    def go(self, sessions: Iterable[Connection]) -> None:
        self._packed.clear()
        for connection in sessions:
            self._queue(connection)

    def tell(self, connection: Connection) -> None:
        """To a session that is new, or does not seem to have heard: where the run stands. Within a
        connection nothing is lost, so that nothing has to be said twice."""
        if connection.is_welcome:
            self._queue(connection)
            return
        number, now = self.machine.current.number, self._clock.monotonic()
        connection.is_welcome = True
        connection.known, connection.went = number, number if self.machine.went else 0
        self._write(connection, connection.seal(self._news("welcome", connection.seen)), now)

    def send(self, connection: Connection, message: Message) -> None:
        self._write(connection, connection.seal(pack(message)), self._clock.monotonic())

    def send_soon(self, connection: Connection, answer: StoreAnswer) -> None:
        """When many are answered by one event."""
        connection.answers.append(answer)
        self._queue(connection)

    def stalled(self, connection: Connection) -> None:
        self._num_stalled_bytes -= self._stalled.get(connection, 0)
        self._stalled[connection] = connection.num_unsent_bytes
        self._num_stalled_bytes += self._stalled[connection]

    def writable(self, connection: Connection) -> None:
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
                self._drop(connection, "it does not take what it is sent")
        if self._due and not self._is_pumping:
            self._start_pumping()

    def share(self) -> None:
        """Between reads. After a change all sessions have something to say at once; those that do
        not know of it yet should not have to wait for that."""
        if self._is_pumping and self._clock.monotonic() > self._pumped + BETWEEN_SECONDS:
            self._send_some()

    def _queue(self, connection: Connection) -> None:
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
        if not self._due and self._published is not None:
            self.announce_seconds = self._pumped - self._published
            self._published = None

    def _catch_up(self, connection: Connection, now: float) -> None:
        frames = [connection.seal(pack(answer)) for answer in connection.answers]
        connection.answers.clear()
        number = self.machine.current.number
        if connection.stalled is None and connection.is_welcome:
            if connection.known != number:
                frames.append(connection.seal(self._news("change", connection.known)))
                connection.known = number
            if self.machine.went and connection.went != number:
                frames.append(connection.seal(self._news("go", number)))
                connection.went = number
        if frames:
            self._write(connection, frames[0] if len(frames) == 1 else b"".join(frames), now)

    def _news(self, kind: Literal["change", "go", "welcome"], base: int) -> Packed:
        """For a session that has this generation. Made once for all that have the same one."""
        base = base if base in self._bases else 0
        packed = self._packed.get((kind, base))
        if packed is None:
            packed = pack(self._message(kind, base))
            self._packed[kind, base] = packed
        return packed

    def _message(self, kind: str, base: int) -> Message:
        current = self.machine.current
        if kind == "go":
            return Go(current.number)
        if kind == "welcome" and base == current.number:
            return Welcome(self.machine.incarnation, None, self.machine.went)
        change = difference(self._bases.get(base), current)
        if kind == "welcome":
            return Welcome(self.machine.incarnation, change, self.machine.went)
        return change

    def _write(self, connection: Connection, data: bytes, now: float) -> None:
        connection.write(data)
        connection.sent = now
        if connection in self._quiet:
            self._quiet.move_to_end(connection)
        if connection.stalled is not None and connection.num_unsent_bytes > MAX_UNSENT_BYTES:
            self._drop(connection, "it does not take what it is sent")
