"""A worker's process and its session, which is opened again: the product's own follower."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from headway.member.protocol.generation import Generation
from headway.member.protocol.status import WorkerStatus
from headway.member.worker.follower import Follower
from support.membership.checks import Checks
from support.membership.network import BROKEN_SECONDS, Network, Session
from support.membership.world import Action, World

if TYPE_CHECKING:
    from support.membership.training import Given, Group

HEARTBEAT_SECONDS = 1.0
WELCOME_SECONDS = 2.0
LONGEST_BACK_OFF_SECONDS = 1.0


class ConnectedProcess(ABC):
    def __init__(
        self,
        world: World,
        network: Network,
        checks: Checks,
        make_follower: Callable[[str], Follower],
        name: str,
    ) -> None:
        self.world, self.network, self.checks, self.name = world, network, checks, name
        self.follower = make_follower(name)
        self.is_dead = self.is_stuck = False
        self.session: Session | None = None
        self._said = WorkerStatus()
        self._back_off = 0.05
        self._cut_since: float | None = None
        self._backlog: list[Action] | None = None
        world.soon(lambda: self.do(self._connect), 0.5)
        world.soon(lambda: self.do(self._heartbeat), HEARTBEAT_SECONDS)

    @abstractmethod
    def _poll(self) -> None:
        """What follows from what it has heard."""

    @abstractmethod
    def _leave_group(self, silently: bool) -> None:
        """It has died."""

    @abstractmethod
    def completed(self, group: Group, index: int, given: dict[str, Given]) -> None:
        """A collective has."""

    @abstractmethod
    def failed(self, group: Group) -> None:
        """A collective has."""

    # The process

    def do(self, action: Action) -> None:
        if self.is_dead:
            return
        if self._backlog is not None:
            self._backlog.append(action)
        else:
            action()

    @property
    def is_well(self) -> bool:
        return not self.is_dead and not self.is_stuck and self._backlog is None

    def stop(self) -> None:
        if self._backlog is None and not self.is_dead:
            self._backlog = []

    def resume(self) -> None:
        backlog, self._backlog = self._backlog, None
        for action in backlog or ():
            self.do(action)

    def die(self, silently: bool) -> None:
        if self.is_dead:
            return
        self.world.tell(self.name, "vanishes" if silently else "dies")
        self.is_dead = True
        self._leave_group(silently)
        if self.session is not None:
            self.session.close_by_worker(silently)

    def unstick(self) -> None:
        self.is_stuck = False
        self._poll()

    # The session

    def _connect(self) -> None:
        if self.session is not None:
            return
        living = self.network.living()
        if not living or self.network.is_cut(self):
            self._connect_later()
            return
        # Mostly the newest; a name may still lead to one that another has replaced.
        coordinator = living[-1] if self.world.random.random() < 0.9 else living[0]
        session = self.session = Session(self.network, self, coordinator)
        status = self._said = self.follower.status
        session.up(lambda: coordinator.accept(session, status))
        self.world.after(WELCOME_SECONDS, lambda: self.do(lambda: self._give_up(session)))

    def _connect_later(self) -> None:
        wait = self._back_off * (0.5 + self.world.random.random() / 2)
        self._back_off = min(2 * self._back_off, LONGEST_BACK_OFF_SECONDS)
        self.world.after(wait, lambda: self.do(self._connect))

    def _give_up(self, session: Session) -> None:
        if not session.welcomed and session is self.session:
            session.close_by_worker()
            self.lost_session(session)

    def lost_session(self, session: Session) -> None:
        session.worker_open = False
        if session is self.session:
            self.session = None
            self._connect_later()

    def welcome(
        self, session: Session, incarnation: int, generation: Generation, went: bool
    ) -> None:
        if not self.follower.meet(incarnation):
            session.close_by_worker()
            self.lost_session(session)
            return
        session.welcomed = True
        self._back_off = 0.05
        self.hear(generation, went)

    def hear(self, generation: Generation, went: bool) -> None:
        before = self.follower.newest.number
        self.follower.hear(generation, went)
        self.checks.seen(self.name, before, self.follower.newest.number)
        self._poll()
        self._say()

    def hear_go(self, number: int) -> None:
        self.follower.hear_go(number)
        self._poll()
        self._say()

    def _say(self) -> None:
        if self.follower.status != self._said:
            self._send()

    def _send(self) -> None:
        session, status = self.session, self.follower.status
        if session is not None and session.worker_open:
            self._said = status
            session.up(lambda: session.coordinator.told(session, status))

    def _heartbeat(self) -> None:
        self.world.after(HEARTBEAT_SECONDS, lambda: self.do(self._heartbeat))
        self._send()
        if not self.network.is_cut(self):
            self._cut_since = None
        elif self._cut_since is None:
            self._cut_since = self.world.now
        elif self.world.now - self._cut_since >= BROKEN_SECONDS and self.session is not None:
            session = self.session
            session.close_by_worker()
            self.lost_session(session)
