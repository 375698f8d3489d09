"""Thousands of members, all alive and late as it was measured: whom the coordinator's rule throws
out all the same. Twice: the rule alone, for millions of hours of a member; and the whole state
machine, which costs microseconds for each heartbeat."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from headway.member.coordinator.decide import Membership
from headway.member.coordinator.events import StatusReceived
from headway.member.coordinator.rules import Rules
from headway.member.coordinator.silence import LATENESS_FACTOR, RecentLateness, silence_limit
from headway.member.protocol.generation import nobody
from headway.member.protocol.wire import HEARTBEAT_SECONDS
from support.membership.drive import Drive
from support.membership.heartbeat_delays import HeartbeatDelays

BLOCK_SECONDS = 1000


@dataclass(frozen=True)
class Silences:
    member_hours: float
    num_evicted: int
    limit: float
    """Longest silence that was allowed at the end."""


def judged_by_rule(
    num_members: int, hours: float, delays: HeartbeatDelays, seed: int, rules: Rules | None = None
) -> Silences:
    """A heartbeat of each member in each second. Always somebody waits, so that all are missed.
    Only long delays are drawn: others change nothing."""
    rules, random = rules or Rules(), np.random.default_rng(seed)
    assert LATENESS_FACTOR * delays.threshold < rules.suspected_seconds - HEARTBEAT_SECONDS
    lateness, num_evicted, limit = RecentLateness(rules.lateness_seconds, 0.0), 0, 0.0
    counts = random.binomial(num_members, delays.long_part, round(hours * 3600))
    for second, count in enumerate(counts.tolist()):
        if second % BLOCK_SECONDS == 0:
            block = counts[second : second + BLOCK_SECONDS]
            late, begin = delays.draw_long(random, int(block.sum())), 0
        limit = silence_limit(rules, num_members, lateness.longest(second))
        some = late[begin : begin + count]
        begin += count
        longest = float(some.max(initial=0.0))
        if longest >= limit - HEARTBEAT_SECONDS:
            is_lost = some >= limit - HEARTBEAT_SECONDS
            num_evicted += int(is_lost.sum())
            longest = float(some.max(where=~is_lost, initial=0.0))
        lateness.note(longest, second)
    return Silences(num_members * hours, num_evicted, limit)


@dataclass
class ManyMembers:
    """A membership with so many members, which train, and one of which always waits."""

    num_members: int
    delays: HeartbeatDelays
    seed: int
    drive: Drive = field(init=False)
    num_evicted: int = 0
    """Members that were alive."""
    dead: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        rules = Rules(max_domains=self.num_members)
        self.drive = Drive(Membership(rules, 1, nobody(1), 0.0))
        self._late: Iterator[float] = self.delays.each(np.random.default_rng(self.seed))
        names = [f"node-{number}.1/0" for number in range(self.num_members)]
        self.drive.open(*names)
        self.drive.now += rules.decide_seconds
        self.drive.do(self.drive.membership.decide(self.drive.now))
        self._settle()
        random = np.random.default_rng(self.seed)
        # The first of each at any time of a second.
        starts = self.drive.now + random.random(self.num_members) * HEARTBEAT_SECONDS
        self._due = list(zip(starts.tolist(), names, strict=True))
        heapq.heapify(self._due)

    @property
    def members(self) -> set[str]:
        return set(self.drive.current.workers())

    def _settle(self) -> None:
        self.drive.settle()
        self.drive.tell(self.drive.workers[0], waits=self.drive.current.number)

    def play(self, seconds: float) -> None:
        """The coordinator is late as well, by a delay of the same kind: it decides first, and reads
        then what has come meanwhile."""
        drive, membership = self.drive, self.drive.membership
        end = drive.now + seconds
        while drive.now < end:
            due, name = self._due[0]
            if membership.wake <= due:
                drive.now = max(drive.now, membership.wake + next(self._late))
                self._decide()
                continue
            heapq.heappop(self._due)
            if name in self.dead:
                continue
            drive.now = max(drive.now, due)
            event = StatusReceived(name, drive.sessions[name], drive.statuses[name])
            drive.do(membership.handle(event, drive.now))
            heapq.heappush(self._due, (due + HEARTBEAT_SECONDS + next(self._late), name))

    def _decide(self) -> None:
        drive, before = self.drive, self.drive.current
        drive.do(drive.membership.decide(drive.now))
        if drive.current.number != before.number:
            gone = set(before.workers()) - self.members
            self.num_evicted += len(gone - self.dead)
            for name in drive.sessions:
                if name not in self.dead and name not in gone:
                    drive.tell(name, seen=drive.current.number)
            self._settle()
