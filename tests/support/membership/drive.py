"""A membership driven case by case: time passes, workers send heartbeats, the record answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from headway.member.coordinator.decide import Membership
from headway.member.coordinator.events import (
    Decision,
    GenerationWritten,
    PublishGeneration,
    PublishGo,
    SessionEnded,
    SessionOpened,
    StatusReceived,
    WriteGeneration,
)
from headway.member.coordinator.rules import Rules
from headway.member.protocol.generation import Generation, nobody
from headway.member.protocol.status import WorkerStatus

RULES = Rules(min_domains=2, max_domains=3)


@dataclass
class Drive:
    """Time, workers that send heartbeats unless told otherwise, and a record that answers."""

    membership: Membership
    now: float = 0.0
    statuses: dict[str, WorkerStatus] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    quiet: set[str] = field(default_factory=set)
    published: list[Generation] = field(default_factory=list)
    decided: list[Decision] = field(default_factory=list)
    went: set[int] = field(default_factory=set)

    @property
    def current(self) -> Generation:
        return self.membership.current

    @property
    def workers(self) -> list[str]:
        return list(self.current.workers())

    def open(self, *workers: str, **changes: int | bool) -> None:
        for worker in workers:
            self.sessions[worker] = len(self.decided) + 1000 * (len(self.sessions) + 1)
            self.statuses[worker] = replace(
                self.statuses.get(worker, WorkerStatus(ready=True)), **{"ready": True, **changes}
            )
            self.do(
                self.membership.handle(
                    SessionOpened(worker, self.sessions[worker], self.statuses[worker]), self.now
                )
            )

    def tell(self, worker: str, **changes: object) -> None:
        self.statuses[worker] = replace(self.statuses[worker], **changes)
        self.do(
            self.membership.handle(
                StatusReceived(worker, self.sessions[worker], self.statuses[worker]), self.now
            )
        )

    def close(self, worker: str) -> None:
        self.do(self.membership.handle(SessionEnded(worker, self.sessions.pop(worker)), self.now))

    def settle(self) -> None:
        """All members enter, form their group and are healed."""
        number = self.current.number
        for worker in self.workers:
            self.tell(worker, seen=number, entered=number)
        assert number in self.went
        for worker in self.workers:
            self.tell(worker, went=number, healed=number)

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, max(self.membership.wake, self.now + 0.01))
            for worker, session in list(self.sessions.items()):
                if worker not in self.quiet:
                    self.do(
                        self.membership.handle(
                            StatusReceived(worker, session, self.statuses[worker]), self.now
                        )
                    )
            self.do(self.membership.decide(self.now))

    def do(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            self.decided.append(decision)
            match decision:
                case WriteGeneration(generation):
                    self.do(self.membership.handle(GenerationWritten(generation.number), self.now))
                case PublishGeneration(generation):
                    self.published.append(generation)
                case PublishGo(number):
                    self.went.add(number)


def started(rules: Rules = RULES, *workers: str) -> Drive:
    """Its first generation is there, and all are well."""
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    drive.open(*(workers or ("a", "b", "c")))
    while not drive.published:
        assert drive.now < rules.gather_seconds + 1
        drive.wait(0.1)
    drive.settle()
    return drive
