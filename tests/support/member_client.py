"""Workers that do not train: a session, a follower, heartbeats. Thousands in a process.

A member enters each generation as soon as it hears of it, and is healed as soon as it may form its
group. What thousands hear alike is decoded once; every tag is verified.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from functools import lru_cache

from headway.member.protocol.generation import Domain, Generation
from headway.member.protocol.handshake import HANDSHAKE_SECONDS, WorkerSide
from headway.member.protocol.messages import (
    Farewell,
    FromCoordinator,
    GenerationChange,
    Go,
    Goodbye,
    Heartbeat,
    StoreAnswer,
    StoreFailed,
    StoreNumber,
    StoreRequest,
    StoreValue,
    StoreValues,
    Welcome,
    apply,
    from_coordinator,
)
from headway.member.protocol.status import WorkerStatus
from headway.member.protocol.wire import DEAF_SECONDS
from headway.member.worker.follower import Follower

HEARTBEAT_SECONDS = 1.0
FIRST_RETRY_SECONDS = 0.02
LONGEST_RETRY_SECONDS = 1.0

decoded_once = lru_cache(maxsize=256)(from_coordinator)
_generations: dict[tuple[object, ...], Generation] = {}
_domains: dict[int, tuple[Generation, dict[str, Domain]]] = {}


def applied_once(key: bytes, change: GenerationChange, base: Generation) -> Generation:
    """The same object for all of a run (`key`)."""
    known = (key, change.base, change.base_incarnation, change.number, change.incarnation)
    if known not in _generations:
        if len(_generations) > 64:
            _generations.clear()
        _generations[known] = apply(change, base)
    return _generations[known]


class QuickFollower(Follower):
    """Finds its domain without going through all of them."""

    @property
    def domain(self) -> Domain | None:
        newest = self.newest
        known = _domains.get(id(newest))
        if known is None or known[0] is not newest:
            if len(_domains) > 64:
                _domains.clear()
            known = (newest, {name: each for each in newest.domains for name in each.workers})
            _domains[id(newest)] = known
        return known[1].get(self.name)


class Member(asyncio.Protocol):
    def __init__(
        self,
        address: tuple[str, int],
        key: bytes,
        run: str,
        name: str,
        *,
        follows: bool = True,
        source: str | None = None,
        on_heard: Callable[[Member, int], None] | None = None,
    ) -> None:
        """`follows`: enters what it hears of, and is healed. `source`: the address it has."""
        self.address, self.key, self.run, self.name = address, key, run, name
        self.follows = follows
        self.source = (source, 0) if source else None
        self.follower = QuickFollower(name)
        self.heard: dict[int, float] = {}
        """When it heard of each generation."""
        self.evicted: list[int] = []
        """Generations that it was no longer in, after one that it was in."""
        self.farewells: list[str] = []
        self.errors: list[str] = []
        self.connects: list[float] = []
        """When sessions were welcomed."""
        self.lost: list[float] = []
        self.num_heartbeats = 0
        self.num_bytes = 0
        """What it was sent."""
        self.latest_heartbeat_seconds = 0.0
        """How late a heartbeat of ours was at worst: a measure of this process."""
        self._on_heard = on_heard
        self._side: WorkerSide | None = None
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._sent: WorkerStatus | None = None
        self._requests: dict[int, asyncio.Future[StoreAnswer]] = {}
        self._num_requests = 0
        self._heartbeat_timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self.is_welcome = False
        self.sends_heartbeats = True

    # Its life

    def start(self, *, ready: bool = True) -> Member:
        if ready:
            self.follower.be_ready()
        self._task = asyncio.get_running_loop().create_task(self._live())
        return self

    async def stop(self) -> None:
        """Without a word, as if killed."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.cut()

    def cut(self) -> None:
        """The connection is gone; a member that lives connects again."""
        if self._transport is not None:
            self._transport.abort()

    async def leave(self, reason: str = "ends as planned") -> None:
        assert self._side is not None
        assert self._transport is not None
        self._transport.write(self._side.send(Goodbye(reason)))
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._transport.close()

    async def _live(self) -> None:
        pause = 0.0
        while True:
            self._over = asyncio.Event()
            began = time.monotonic()
            try:
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    await asyncio.get_running_loop().create_connection(
                        lambda: self, *self.address, local_addr=self.source
                    )
            except OSError:  # a TimeoutError is one
                pass
            else:
                await self._over.wait()
                if self.connects and self.connects[-1] > began:
                    pause = 0.0
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(max(FIRST_RETRY_SECONDS, 2 * pause), LONGEST_RETRY_SECONDS)

    # Its connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        newest = self.follower.incarnation
        self._side = WorkerSide(self.key, self.run, self.name, newest_incarnation=newest)
        self._side._decode = decoded_once
        self._sent, self.is_welcome = None, False
        self._heard_at = time.monotonic()
        transport.write(self._side.hello)

    def data_received(self, data: bytes) -> None:
        assert self._side is not None
        assert self._transport is not None
        self._heard_at = time.monotonic()
        self.num_bytes += len(data)
        was_open = self._side.is_open
        received = self._side.receive(data)
        if received.reply:
            self._transport.write(received.reply)
        if self._side.is_open and not was_open:
            self.follower.meet(self._side.incarnation)
            self.heartbeat()
            self._schedule_heartbeat(HEARTBEAT_SECONDS * random.random())
        for message in received.messages:
            self._hear(message)
        if received.error is not None:
            self.errors.append(str(received.error))
            self._transport.abort()
        elif received.messages:
            self.heartbeat_if_changed()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(time.monotonic())
        self._side = self._transport = None
        self.is_welcome = False
        if self._heartbeat_timer is not None:
            self._heartbeat_timer.cancel()
            self._heartbeat_timer = None
        for future in self._requests.values():
            future.cancel()
        self._requests.clear()
        self._over.set()

    def _hear(self, message: FromCoordinator) -> None:
        follower = self.follower
        match message:
            case Welcome():
                if not self.is_welcome:
                    self.is_welcome = True
                    self.connects.append(time.monotonic())
                if message.change is not None:
                    self._learn(
                        applied_once(self.key, message.change, follower.newest), message.went
                    )
                elif message.went:
                    follower.hear_go(follower.newest.number)
                self._train()
            case GenerationChange():
                self._learn(applied_once(self.key, message, follower.newest), False)
                self._train()
            case Go():
                follower.hear_go(message.generation)
                self._train()
            case Farewell():
                self.farewells.append(message.reason)
            case StoreValue() | StoreNumber() | StoreFailed() | StoreValues():
                future = self._requests.pop(message.request, None)
                if future is not None and not future.done():
                    future.set_result(message)

    def _learn(self, generation: Generation, went: bool) -> None:
        follower = self.follower
        assert generation.number >= follower.newest.number, "generations go up only"
        was_in = follower.domain is not None
        if generation.number > follower.newest.number:
            self.heard[generation.number] = time.monotonic()
        follower.hear(generation, went)
        if was_in and follower.domain is None:
            self.evicted.append(generation.number)
        if self._on_heard is not None:
            self._on_heard(self, generation.number)

    def _train(self) -> None:
        follower = self.follower
        if not self.follows:
            return
        if follower.domain is None:
            if follower.newest.number and not follower.status.leaving:
                follower.be_ready()  # out: it asks to join anew
            return
        if follower.newest.number > follower.status.entered:
            follower.enter()
        if follower.may_form and follower.status.healed < follower.status.entered:
            follower.healed()

    # What it says

    def heartbeat_if_changed(self) -> None:
        if self.follower.status != self._sent:
            self.heartbeat()

    def heartbeat(self) -> None:
        if self._side is None or self._transport is None or not self._side.is_open:
            return
        self._sent = self.follower.status
        self.num_heartbeats += 1
        self._transport.write(self._side.send(Heartbeat(self._sent)))

    def _schedule_heartbeat(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + seconds

        def heartbeat() -> None:
            self.latest_heartbeat_seconds = max(self.latest_heartbeat_seconds, loop.time() - due)
            if time.monotonic() > self._heard_at + DEAF_SECONDS:
                self.cut()
                return
            if self.sends_heartbeats:
                self.heartbeat()
            self._schedule_heartbeat(HEARTBEAT_SECONDS)

        self._heartbeat_timer = loop.call_at(due, heartbeat)

    async def ask(self, make: Callable[[int], StoreRequest]) -> StoreAnswer:
        """A request to the store of keys, and its answer."""
        assert self._side is not None
        assert self._transport is not None
        self._num_requests += 1
        future: asyncio.Future[StoreAnswer] = asyncio.get_running_loop().create_future()
        self._requests[self._num_requests] = future
        self._transport.write(self._side.send(make(self._num_requests)))
        return await asyncio.wait_for(future, 20)


def are_one_group(members: Sequence[Member]) -> bool:
    """All of them, in one generation that works."""
    newest = members[0].follower.newest.number
    return all(
        member.follower.domain is not None
        and member.follower.status.healed == member.follower.newest.number == newest
        for member in members
    )
