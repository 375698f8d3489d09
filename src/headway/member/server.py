"""The coordinator's process: sessions in, generations out, each written before it is said.

One loop in one thread, and another thread for the record. The machine decides; here is what it is
told, and what is done about it.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any, TypeVar

from headway.clock import Clock
from headway.errors import RunFailed
from headway.member.connection import READ_BYTES, Connection, Door
from headway.member.events import (
    Close,
    Closed,
    Decision,
    Dismissed,
    Event,
    Go,
    Goodbye,
    Opened,
    Publish,
    Refused,
    Status,
    StepDown,
    Tell,
    Told,
    Write,
    Written,
)
from headway.member.generation import Generation, nobody
from headway.member.history import History
from headway.member.machine import Machine
from headway.member.messages import (
    MAX_REQUESTS,
    Beat,
    Farewell,
    FromWorker,
    ProtocolError,
    StoreAnswer,
    StoreRequest,
)
from headway.member.messages import Goodbye as GoodbyeMessage
from headway.member.news import News
from headway.member.nodes import place_of
from headway.member.records import Entry, Record
from headway.member.rendezvous import Rendezvous
from headway.member.rules import Rules
from headway.member.wire import CoordinatorSide

CONFIRM_SECONDS = 1.0
"""Between two looks whether another coordinator has taken this one's place."""
RETRY_SECONDS = 0.2
LONGEST_RETRY_SECONDS = 2.0
CLAIM_SECONDS = 60.0
"""For a record that is away at the start; then whoever started this process may try again."""
TICK_SECONDS = 0.1
BETWEEN_LOOKS = 3
"""Times what a look took, before the next one: it goes through all members, and with thousands of
them, all of which have something to say after a change, it would take half of the time."""
TIMEOUTS = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
REPLACED = "its place was given to another"
FAREWELL_SECONDS = 2.0
"""For a session to take the last message."""

Result = TypeVar("Result")


async def claim(
    record: Record, clock: Clock, log: Callable[[str], None], after: int | None = None
) -> Entry:
    """Takes the next incarnation. From then on no earlier coordinator can change the run. With
    `after`, the members of before have all ended, and generations go on behind that number."""
    deadline = clock.monotonic() + CLAIM_SECONDS
    said = ""
    while True:
        try:
            newest = await in_thread(record.read)
            incarnation, generation = newest.incarnation + 1, newest.generation
            if after is not None:
                generation = nobody(incarnation, max(after, generation.number))
            claimed = Entry(newest.version + 1, incarnation, generation)
            if await in_thread(partial(record.swap, newest, claimed)):
                return claimed
            why = "another coordinator starts at the same time"
        except OSError as error:
            why = str(error)
        if clock.monotonic() > deadline:
            raise RunFailed(f"the record cannot be written: {why}")
        if why != said:
            said = why
            log(f"the record cannot be written yet: {why}")
        await asyncio.sleep(RETRY_SECONDS)


async def in_thread(call: Callable[[], Result]) -> Result:
    """In a thread that does not hold the process at its end, as those of an executor do: a call to
    a store that is away may hang for minutes."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Callable[[], None]) -> None:
        if not future.done():
            result()

    def work() -> None:
        try:
            outcome = partial(future.set_result, call())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            outcome = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, outcome)

    Thread(target=work, name="record", daemon=True).start()
    return await future


class Server:
    def __init__(
        self,
        run: str,
        key: bytes,
        rules: Rules,
        record: Record,
        claimed: Entry,
        clock: Clock,
        log: Callable[[str], None],
        binding: bytes = b"",
    ) -> None:
        """`binding` ties sessions to the TLS connections below them."""
        current = claimed.generation
        self.run = run
        self.clock = clock
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.began = clock.monotonic()
        self.machine = Machine(rules, claimed.incarnation, current, self.began)
        self.news = News(self.machine, clock, self._end)
        self.history = History(clock, current)
        self.rendezvous = Rendezvous()
        self.rendezvous.open(current.number, list(current.pods()))
        self.sessions: dict[int, Connection] = {}
        """Those that the machine knows."""
        self.counts: Counter[str] = Counter()
        self.write_seconds = 0.0
        """Of the newest generation, from the decision to the record."""
        self.lag_seconds = 0.0
        """The longest that the loop was behind, lately."""
        self.door: Door | None = None
        self._key = key
        self._binding = binding
        self._record = record
        self._entry = claimed
        self._log = log
        self._num_connections = 0
        self._gone: set[str] = set()
        """Places of those who have been replaced."""
        self._closing: dict[Connection, float] = {}
        """Until when they may take their last message."""
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[str] = self._loop.create_future()
        """Why another one has to go on."""
        self._is_ending = False
        self._look: asyncio.TimerHandle | None = None
        self._look_at = 0.0
        self._not_before = 0.0
        self._to_write: asyncio.Queue[tuple[Generation, float]] = asyncio.Queue()

    async def serve(
        self, listening: socket.socket, tls: ssl.SSLContext | None, stop: asyncio.Event
    ) -> None:
        """Until `stop` is set. Raises RunFailed when another coordinator has to go on."""
        self.door = Door(listening, self._connection, self.clock, tls)
        self.door.open()
        self._loop.set_exception_handler(self._failed)
        stopping = self._loop.create_task(stop.wait())
        tasks = [
            self._loop.create_task(self._keep_record()),
            self._loop.create_task(self._keep_ticking()),
        ]
        for task in tasks:
            task.add_done_callback(self._ended)
        self._schedule()
        waits: list[asyncio.Future[Any]] = [self._over, stopping]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            reason = self._over.result() if self._over.done() else ""
            await self._say_farewell(reason or "the coordinator ends")
            if reason:
                raise RunFailed(f"this coordinator steps down: {reason}")
        finally:
            self.door.close()
            for each in (stopping, *tasks):
                each.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._over.done():
            self._over.set_exception(error)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A defect of ours. Begun anew from the record all is well again; what goes on in a state
        that nobody has thought of is not. But a stranger shall not be able to stop the run by it:
        there only the connection is lost, which is closed already."""
        error = context.get("exception") or RunFailed(str(context.get("message")))
        connection = context.get("protocol")
        is_of_session = isinstance(connection, Connection) and connection.is_open
        if ("handle" in context or is_of_session) and not self._over.done():
            self._over.set_exception(error)
            return
        self.counts["defects"] += 1
        self._log(f"a connection was closed by a defect: {error!r}")

    async def _say_farewell(self, reason: str) -> None:
        assert self.door is not None
        self.door.close()
        # That sessions close now is no news for the machine: it would write that all are gone.
        self._is_ending = True
        for count, connection in enumerate(list(self.sessions.values())):
            self._end(connection, reason)
            if count % 500 == 499:
                await asyncio.sleep(0)
        deadline = self.clock.monotonic() + FAREWELL_SECONDS
        while self._closing and self.clock.monotonic() < deadline:
            await asyncio.sleep(0.02)
        for connection in list(self._closing):
            connection.abort()
        await asyncio.sleep(0)

    async def _keep_ticking(self) -> None:
        due = self._loop.time()
        while True:
            due = max(due + TICK_SECONDS, self._loop.time())
            await asyncio.sleep(due - self._loop.time())
            # The longest of the last minute or so: it fades.
            self.lag_seconds = max(0.999 * self.lag_seconds, self._loop.time() - due)
            now = self.clock.monotonic()
            assert self.door is not None
            self.door.expire(now)
            self.rendezvous.expire(now)
            self.news.tick(now)
            for connection in list(self._closing):
                if now < self._closing[connection]:
                    break
                connection.abort()

    # The record

    async def _keep_record(self) -> None:
        """One call at a time, and none is given up: one that was left behind could still write."""
        while True:
            try:
                generation, decided = await asyncio.wait_for(self._to_write.get(), CONFIRM_SECONDS)
            except TimeoutError:
                await self._confirm()
                continue
            if await self._write(generation):
                self.write_seconds = self.clock.monotonic() - decided
                self.handle(Written(generation.number))
            else:
                self.handle(Refused(generation.number))

    async def _write(self, generation: Generation) -> bool:
        """While the record is away training goes on, and the change waits here."""
        entry = Entry(self._entry.version + 1, self.machine.incarnation, generation)
        pause = RETRY_SECONDS
        while True:
            try:
                made = await in_thread(partial(self._record.swap, self._entry, entry))
            except OSError as error:
                if pause == RETRY_SECONDS:
                    self._log(f"generation {generation.number} waits, the record is away: {error}")
                self.counts["record failures"] += 1
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_RETRY_SECONDS)
                continue
            if made:
                self._entry = entry
            return made

    async def _confirm(self) -> None:
        """Looks whether another coordinator has taken this one's place."""
        try:
            newest = await in_thread(self._record.read)
        except OSError:
            self.counts["record failures"] += 1  # said aloud when a change has to wait for it
            return
        if newest.incarnation > self.machine.incarnation:
            self._step_down(f"coordinator {newest.incarnation} has taken its place")
        elif newest.version < self._entry.version:
            self.counts["record failures"] += 1

    def _step_down(self, reason: str) -> None:
        if not self._over.done():
            self._over.set_result(reason)

    # The machine

    def handle(self, event: Event) -> None:
        if self._is_ending:
            return
        decisions = self.machine.handle(event, self.clock.monotonic())
        if decisions:
            self._act(decisions)
        self._schedule()

    def _schedule(self) -> None:
        at = max(self.machine.wake, self._not_before)
        if self._look is not None:
            if self._look_at <= at:
                return
            self._look.cancel()
        self._look_at = at
        self._look = self._loop.call_later(at - self.clock.monotonic(), self._look_now)

    def _look_now(self) -> None:
        self._look = None
        if self._is_ending:
            return
        began = self.clock.monotonic()
        self._act(self.machine.look(began))
        ended = self.clock.monotonic()
        self._not_before = ended + BETWEEN_LOOKS * (ended - began)
        self._schedule()

    def _act(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Write(generation):
                    self._to_write.put_nowait((generation, self.clock.monotonic()))
                case Publish(generation):
                    self._publish(generation)
                case Go():
                    self.news.go(self.sessions.values())
                case Tell(number):
                    if number in self.sessions:
                        self.news.tell(self.sessions[number])
                case Close(number, reason):
                    if number in self.sessions:
                        self._end(self.sessions[number], reason)
                case StepDown(reason):
                    self._step_down(reason)

    def _publish(self, generation: Generation) -> None:
        self.counts["generations"] += 1
        self.history.published(generation)
        self.rendezvous.open(generation.number, list(generation.pods()))
        self.news.publish(self.sessions.values())
        self._log(
            f"generation {generation.number}: {len(generation.domains)} domains"
            f"{', paused' if generation.paused else ''}; {generation.reason}"
        )

    # Connections

    def _connection(self, address: str, now: float) -> Connection:
        self._num_connections += 1
        incarnation = self.machine.incarnation
        side = CoordinatorSide(self._key, self.run, incarnation, binding=self._binding)
        return Connection(self, side, self._num_connections, address, now)

    def received(self, connection: Connection, messages: list[FromWorker]) -> None:
        num_requests = 0
        for message in messages:
            if isinstance(message, Beat):
                self.counts["beats"] += 1
                if connection.is_open:
                    self.handle(Told(connection.pod, connection.number, message.status))
                else:
                    self._open(connection, message.status)
            elif not connection.is_open:
                self.wrong(connection, ProtocolError("the first message is no Beat"))
            elif isinstance(message, GoodbyeMessage):
                self.counts["goodbyes"] += 1
                self.handle(Goodbye(connection.pod, connection.number))
                self._end(connection, "goodbye")
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
        self.news.share()

    def _open(self, connection: Connection, status: Status) -> None:
        if place_of(connection.pod) in self._gone:
            self._end(connection, REPLACED)
            return
        assert self.door is not None
        self.door.forget(connection)
        self.counts["opened"] += 1
        self.history.note(connection.pod, f"opened session {connection.number}")
        self.sessions[connection.number] = connection
        connection.is_open = True
        connection.seen = status.seen
        self.news.add(connection)
        self.handle(Opened(connection.pod, connection.number, status))

    def dismiss(self, place: str) -> None:
        """Others are there for those who were in this place. They may only have been cut off: if
        they are heard of again, they are not let in."""
        self._gone.add(place)
        for pod in [name for name in self.machine.pods if place_of(name) == place]:
            self.handle(Dismissed(pod))
        for connection in list(self.sessions.values()):
            if place_of(connection.pod) == place:
                self._end(connection, REPLACED)

    def _ask(self, connection: Connection, request: StoreRequest) -> None:
        self.counts["requests"] += 1
        number, is_later = request.request, False

        def reply(answer: StoreAnswer) -> None:
            if is_later:
                # One value may be what thousands wait for.
                connection.waiting.pop(number, None)
                self.news.send_soon(connection, answer)
            else:
                self.news.send(connection, answer)

        if number in connection.waiting:
            self.wrong(connection, ProtocolError(f"request {number} is open already"))
            return
        now = self.clock.monotonic()
        waiter = self.rendezvous.handle(request, connection.pod, now, reply)
        if waiter is not None:
            is_later = True
            connection.waiting[number] = waiter

    def wrong(self, connection: Connection, error: ProtocolError) -> None:
        """Nothing more is read from it or sent to it."""
        self.counts["refused"] += 1
        self.history.refused(connection.address, error.message)
        self._leave(connection, f"was wrong: {error.message}")
        connection.close()
        self._closing[connection] = self.clock.monotonic() + FAREWELL_SECONDS

    def stalled(self, connection: Connection) -> None:
        self.news.stalled(connection)

    def writable(self, connection: Connection) -> None:
        self.news.writable(connection)

    def lost(self, connection: Connection, error: Exception | None) -> None:
        self._closing.pop(connection, None)
        is_timeout = isinstance(error, OSError) and error.errno in TIMEOUTS
        self._leave(connection, "timed out" if is_timeout else "closed", is_silence=is_timeout)

    def _end(self, connection: Connection, reason: str) -> None:
        """Says so, and closes."""
        if connection.is_over:
            return
        if connection.side.is_open:
            connection.write(connection.side.send(Farewell(reason)))
        connection.close()
        self._closing[connection] = self.clock.monotonic() + FAREWELL_SECONDS
        self._leave(connection, f"ended: {reason}")

    def _leave(self, connection: Connection, why: str, is_silence: bool = False) -> None:
        """The session is over. One that timed out is not known to be closed at the other end: its
        silence counts, which leaves it time to be back when the network is."""
        connection.is_over = True
        if self.door is not None:
            self.door.forget(connection)
        if self.sessions.pop(connection.number, None) is None:
            return
        self.counts["closed"] += 1
        self.history.note(connection.pod, f"session {connection.number} {why}")
        self.news.remove(connection)
        for waiter in connection.waiting.values():
            self.rendezvous.cancel(waiter)
        connection.waiting.clear()
        if not is_silence:
            self.handle(Closed(connection.pod, connection.number))
