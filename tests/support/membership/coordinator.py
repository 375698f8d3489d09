"""A coordinator's process: drives the membership, and dies, stops and comes back as told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headway.member.coordinator.decide import Membership
from headway.member.coordinator.events import (
    CloseSession,
    Decision,
    Event,
    GenerationWritten,
    GoodbyeReceived,
    PublishGeneration,
    PublishGo,
    SessionEnded,
    SessionOpened,
    StatusReceived,
    StepDown,
    UpdateSession,
    WriteGeneration,
    WriteRefused,
)
from headway.member.coordinator.rules import Rules
from headway.member.protocol.generation import Generation
from headway.member.protocol.status import WorkerStatus
from support.membership.checks import Checks
from support.membership.network import Network, Session
from support.membership.record import Entry, Record
from support.membership.world import Action, World

if TYPE_CHECKING:
    from support.membership.connected_process import ConnectedProcess

CONFIRM_SECONDS = 1.0
ROUNDING_SECONDS = 1e-6
MakeMembership = Callable[[Rules, int, Generation, float], Membership]


class Coordinator:
    def __init__(
        self,
        world: World,
        network: Network,
        record: Record,
        rules: Rules,
        checks: Checks,
        make: MakeMembership,
    ) -> None:
        self.world, self.network, self.record, self.rules = world, network, record, rules
        self.checks, self._make = checks, make
        self.name = f"coordinator {len(network.coordinators) + 1}"
        network.coordinators.append(self)
        self.membership: Membership | None = None
        self.is_dead = self.has_vanished = False
        self.clock_offset = 0.0
        self._held_up: list[tuple[float, float]] = []
        self._stopped = 0.0
        self._backlog: list[Action] | None = None
        self._sessions: dict[int, Session] = {}
        self._version = 0
        self.is_writing = False
        self.disturbed = 0.0
        """When its clock or its process last did something odd."""
        self._look_at = 0.0
        world.after(0.2 + world.random.random(), lambda: self.do(self._claim))

    @property
    def is_serving(self) -> bool:
        return self.membership is not None and not self.is_dead

    @property
    def now(self) -> float:
        return self.world.now + self.clock_offset

    def do(self, action: Action) -> None:
        if self._backlog is not None:
            self._backlog.append(action)
        elif not self.is_dead:
            action()

    def stop(self) -> None:
        if self._backlog is None:
            self._backlog, self._stopped = [], self.world.now

    def resume(self) -> None:
        backlog, self._backlog = self._backlog, None
        if backlog is None:
            return
        self._was_held_up(self.world.now - self._stopped)
        # After a stop, timers may be served before what came in, or after it.
        timers = [action for action in backlog if action == self._look]
        others = [action for action in backlog if action != self._look]
        first = self.world.random.random() < 0.5
        for action in [*timers, *others] if first else [*others, *timers]:
            self.do(action)

    def die(self, silently: bool) -> None:
        if self.is_dead:
            return
        self.is_dead, self.has_vanished = True, silently
        for session in self._sessions.values():
            session.close_by_coordinator(silently)
        self.world.tell(self.name, "vanishes" if silently else "dies")

    def jump(self, seconds: float) -> None:
        self.clock_offset += seconds
        self._was_held_up(seconds)

    def _was_held_up(self, seconds: float) -> None:
        """Less is not noticed, and not more than the patience allows for."""
        self.disturbed = self.now
        if seconds > self.rules.idle_seconds + self.rules.pause_seconds:
            self._held_up.append((self.now, seconds))

    def waited_since(self, time: float) -> float:
        """Seconds of its clock, without those in which it was itself held up."""
        own = sum(seconds for end, seconds in self._held_up if end > time)
        return self.now - time - own + ROUNDING_SECONDS

    def _claim(self) -> None:
        """Takes the next incarnation; a stale read is found out by the swap."""
        if self.is_dead:
            return
        entry = self.record.read()
        claim = Entry(entry.version + 1, entry.incarnation + 1, entry.generation)
        if self.record.is_away or not self.record.swap(entry.version, claim):
            self.record.is_stale = False
            self.world.after(0.2, lambda: self.do(self._claim))
            return
        self._version = claim.version
        self.membership = self._make(self.rules, claim.incarnation, claim.generation, self.now)
        self.checks.started(self)
        self.world.tell(self.name, f"starts as incarnation {claim.incarnation}")
        self._schedule()
        self._confirm()

    def _confirm(self) -> None:
        """Looks whether another has taken its place."""
        assert self.membership is not None
        entry = self.record.entries[-1]
        if not self.record.is_away and entry.incarnation > self.membership.incarnation:
            self.world.tell(self.name, f"steps down for incarnation {entry.incarnation}")
            self.die(silently=False)
        else:
            self.world.after(CONFIRM_SECONDS, lambda: self.do(self._confirm))

    # Sessions

    def accept(self, session: Session, status: WorkerStatus) -> None:
        self._sessions[session.number] = session
        self.handle(SessionOpened(session.worker.name, session.number, status))

    def told(self, session: Session, status: WorkerStatus) -> None:
        worker = (
            self.membership.workers.get(session.worker.name)
            if self.membership is not None
            else None
        )
        if worker is not None and worker.session == session.number:
            self.checks.heard(self, worker.name)
            self.checks.said_to_have_seen(worker.name, status.seen)
            self.checks.said_to_have_entered(worker.name, status.entered)
            self.checks.said(self, session.number, worker.name, status)
        self.handle(StatusReceived(session.worker.name, session.number, status))

    def goodbye(self, session: Session) -> None:
        self.checks.closed(self, session.worker.name)
        self.checks.says_nothing(self, session.number)
        self.handle(GoodbyeReceived(session.worker.name, session.number))

    def lost(self, session: Session) -> None:
        session.coordinator_open = False
        self._sessions.pop(session.number, None)
        self.checks.closed(self, session.worker.name)
        self.checks.says_nothing(self, session.number)
        self.handle(SessionEnded(session.worker.name, session.number))

    # The membership

    def handle(self, event: Event) -> None:
        if self.membership is None:
            return
        if isinstance(event, SessionOpened):
            self.checks.said(self, event.session, event.worker, event.status)
            self.checks.arrived(self, event.worker)
            self.checks.heard(self, event.worker)
            self.checks.said_to_have_seen(event.worker, event.status.seen)
            self.checks.said_to_have_entered(event.worker, event.status.entered)
        if isinstance(event, GenerationWritten):
            self.is_writing = False
        self._act(self.membership.handle(event, self.now))

    def _look(self) -> None:
        if self.is_serving and self.membership is not None:
            self._look_at = 0.0
            self._act(self.membership.decide(self.now))
            self.checks.looked(self)

    def _schedule(self) -> None:
        assert self.membership is not None
        at = max(self.membership.wake - self.clock_offset, self.world.now)
        if self._look_at and self._look_at <= at:
            return
        self._look_at = at

        def look() -> None:
            if self._look_at == at:
                self.do(self._look)

        self.world.after(at - self.world.now, look)

    def _act(self, decisions: list[Decision]) -> None:
        assert self.membership is not None
        if self.membership.established:
            self.checks.established(self, self.membership.current.number)
        for decision in decisions:
            match decision:
                case WriteGeneration(generation):
                    self.is_writing = True
                    self.checks.decided(self, generation)
                    self._write_soon(generation)
                case PublishGeneration(generation):
                    self.checks.published(generation)
                    for session in list(self._sessions.values()):
                        self._send(session, lambda worker: worker.hear(generation, False))
                case PublishGo(number):
                    self.checks.went(self.membership.current)
                    for session in list(self._sessions.values()):
                        self._send(session, lambda worker: worker.hear_go(number))
                case UpdateSession(number):
                    self._tell(self._sessions.get(number))
                case CloseSession(number):
                    if number in self._sessions:
                        session = self._sessions.pop(number)
                        self.checks.closed(self, session.worker.name)
                        self.checks.says_nothing(self, number)
                        session.close_by_coordinator()
                case StepDown(reason):
                    self.world.tell(self.name, f"steps down: {reason}")
                    self.die(silently=False)
                    return
        self._schedule()

    def _tell(self, session: Session | None) -> None:
        if session is not None and self.membership is not None:
            generation, went = self.membership.current, self.membership.went
            incarnation = self.membership.incarnation
            self._send(
                session, lambda worker: worker.welcome(session, incarnation, generation, went)
            )

    def _send(self, session: Session, hear: Callable[[ConnectedProcess], None]) -> None:
        session.down(lambda: hear(session.worker))

    def _write_soon(self, generation: Generation) -> None:
        self.world.soon(lambda: self.do(lambda: self._write(generation)), 0.05)

    def _write(self, generation: Generation) -> None:
        if self.record.is_away:
            self.world.after(0.2, lambda: self.do(lambda: self._write(generation)))
            return
        assert self.membership is not None
        entry = Entry(self._version + 1, self.membership.incarnation, generation)
        # An answer may be lost: then one reads, and finds one's own entry or another's.
        if self.record.swap(self._version, entry) or self.record.entries[-1] == entry:
            self._version = entry.version
            self.checks.written(generation)
            who = ", ".join(
                "+".join(domain.workers) + ("" if domain.holds else " (new)")
                for domain in generation.domains
            )
            self.world.tell(
                self.name,
                f"generation {generation.number}: {who or 'nobody'}{' paused' * generation.paused}"
                f"; sound {list(generation.sound)}; {generation.reason}",
            )
            self.world.soon(
                lambda: self.do(lambda: self.handle(GenerationWritten(generation.number))), 0.05
            )
        else:
            self.handle(WriteRefused(generation.number))
