"""A machine driven case by case: time passes, pods beat, and the record always answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from headway.member.events import (
    Closed,
    Decision,
    Go,
    Opened,
    Publish,
    Status,
    Told,
    Write,
    Written,
)
from headway.member.generation import Generation, nobody
from headway.member.machine import Machine
from headway.member.rules import Rules

RULES = Rules(min_domains=2, max_domains=3)


@dataclass
class Drive:
    """Time, pods that beat each second unless told otherwise, and a record that always answers."""

    machine: Machine
    now: float = 0.0
    statuses: dict[str, Status] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    quiet: set[str] = field(default_factory=set)
    published: list[Generation] = field(default_factory=list)
    decided: list[Decision] = field(default_factory=list)
    went: set[int] = field(default_factory=set)

    @property
    def current(self) -> Generation:
        return self.machine.current

    @property
    def pods(self) -> list[str]:
        return list(self.current.pods())

    def open(self, *pods: str, **changes: int | bool) -> None:
        for pod in pods:
            self.sessions[pod] = len(self.decided) + 1000 * (len(self.sessions) + 1)
            self.statuses[pod] = replace(
                self.statuses.get(pod, Status(ready=True)), **{"ready": True, **changes}
            )
            self.do(
                self.machine.handle(Opened(pod, self.sessions[pod], self.statuses[pod]), self.now)
            )

    def tell(self, pod: str, **changes: object) -> None:
        self.statuses[pod] = replace(self.statuses[pod], **changes)
        self.do(self.machine.handle(Told(pod, self.sessions[pod], self.statuses[pod]), self.now))

    def close(self, pod: str) -> None:
        self.do(self.machine.handle(Closed(pod, self.sessions.pop(pod)), self.now))

    def settle(self) -> None:
        """All members enter, form their group and are healed."""
        number = self.current.number
        for pod in self.pods:
            self.tell(pod, seen=number, entered=number)
        assert number in self.went
        for pod in self.pods:
            self.tell(pod, went=number, healed=number)

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, max(self.machine.wake, self.now + 0.01))
            for pod, session in list(self.sessions.items()):
                if pod not in self.quiet:
                    self.do(self.machine.handle(Told(pod, session, self.statuses[pod]), self.now))
            self.do(self.machine.look(self.now))

    def do(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            self.decided.append(decision)
            match decision:
                case Write(generation):
                    self.do(self.machine.handle(Written(generation.number), self.now))
                case Publish(generation):
                    self.published.append(generation)
                case Go(number):
                    self.went.add(number)


def started(rules: Rules = RULES, *pods: str) -> Drive:
    """Its first generation is there, and all are well."""
    drive = Drive(Machine(rules, 1, nobody(1), 0.0))
    drive.open(*(pods or ("a", "b", "c")))
    while not drive.published:
        assert drive.now < rules.gather_seconds + 1
        drive.wait(0.1)
    drive.settle()
    return drive
