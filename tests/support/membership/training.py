"""A model of collectives: some complete for one member and fail for another, some hang."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.member.protocol.generation import Generation
from headway.member.worker.state_choice import Name
from support.membership.checks import Checks
from support.membership.network import Network
from support.membership.world import World

if TYPE_CHECKING:
    from support.membership.connected_process import ConnectedProcess

FORM, EXCHANGE, HEAL, FIRST_STEP = range(4)
HEAL_SECONDS = 1.0
"""All weights go over the network."""


@dataclass(frozen=True)
class Held:
    """A state of the run, named as the design names it; `content` is all that led to it."""

    step: int = 0
    committed_in: int = 0
    content: int = 0

    @property
    def name(self) -> Name:
        return self.step, self.committed_in

    def learn(self, generation: int) -> Held:
        return Held(self.step + 1, generation, hash((self.content, self.step + 1, generation)))


@dataclass(frozen=True)
class Given:
    """What a member gives to a collective."""

    seen: int
    healed: int = 0
    held: Held | None = None
    leaving: bool = False


class Group:
    """The process group of a generation."""

    def __init__(
        self, world: World, network: Network, checks: Checks, generation: Generation
    ) -> None:
        self.world, self.network, self.checks = world, network, checks
        self.generation = generation
        self.members = tuple(generation.workers())
        self._given: dict[int, dict[str, Given]] = defaultdict(dict)
        self._waiting: dict[str, tuple[int, ConnectedProcess]] = {}
        self._full: set[int] = set()
        self._left: set[str] = set()
        self._vanished: set[str] = set()
        self._unfinished = False
        """Whether one left in the middle of a collective."""

    def join(self, worker: ConnectedProcess, index: int, given: Given) -> None:
        self._given[index][worker.name] = given
        self._waiting[worker.name] = (index, worker)
        if self._left and index not in self._full:
            self._fail_soon(worker, index)
        self.try_finish()

    def leave(self, worker: ConnectedProcess, silently: bool = False) -> None:
        """Lets go of the group. Others notice, unless its machine has vanished."""
        is_waiting = self._waiting.pop(worker.name, None) is not None
        self._unfinished = self._unfinished or is_waiting
        if silently:
            self._vanished.add(worker.name)
            return
        self._left.add(worker.name)
        for index, other in list(self._waiting.values()):
            if index not in self._full:
                self._fail_soon(other, index)

    def unreachable(self, worker: ConnectedProcess) -> tuple[str, ...]:
        return tuple(
            name
            for name in self.members
            if name in self._vanished or self.network.are_cut(worker.name, name)
        )

    def try_finish(self) -> None:
        if self._left or self._vanished:
            return
        for index in {index for index, _ in self._waiting.values()}:
            given = self._given[index]
            if index in self._full or len(given) < len(self.members):
                continue
            if any(self.network.are_cut(a, b) for a in self.members for b in self.members):
                continue
            self._full.add(index)
            self.checks.met(self.generation, index)
            for waiting_for, worker in list(self._waiting.values()):
                if waiting_for == index:
                    self._complete_soon(worker, index)

    def _complete_soon(self, worker: ConnectedProcess, index: int) -> None:
        def complete() -> None:
            if self._waiting.get(worker.name) != (index, worker):
                return
            # One that leaves now may or may not have passed on what the others need; one that had
            # finished has.
            is_in_doubt = self._unfinished or self._vanished
            if is_in_doubt and self.world.random.random() < 0.5:
                if self._left:
                    self._fail_soon(worker, index)
                return
            del self._waiting[worker.name]
            worker.completed(self, index, self._given[index])

        self.world.soon(lambda: worker.do(complete), HEAL_SECONDS if index == HEAL else 0.03)

    def _fail_soon(self, worker: ConnectedProcess, index: int) -> None:
        def fail() -> None:
            if self._waiting.get(worker.name) == (index, worker):
                del self._waiting[worker.name]
                worker.failed(self)

        self.world.soon(lambda: worker.do(fail), 0.05)
