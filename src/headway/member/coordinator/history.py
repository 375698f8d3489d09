"""Recent generations, sessions and refusals, for people to read. Nothing depends on it."""

from __future__ import annotations

from collections import deque

from msgspec import Struct, field

from headway.clock import Clock, stamp
from headway.member.protocol.generation import Generation

KEPT_GENERATIONS = 100
KEPT_EVENTS = 500
KEPT_REFUSALS = 50
"""Kept apart from the others: strangers can cause as many as they like."""
NAMED = 16
"""Number of workers that are named; of the rest only the number is kept."""


class GenerationFacts(Struct, frozen=True):
    number: int
    incarnation: int
    at: str
    reason: str
    num_domains: int
    num_workers: int = field(name="num_pods")
    paused: bool
    num_came: int
    num_left: int
    came: list[str]
    """Names of some of them."""
    left: list[str]


class SessionEvent(Struct, frozen=True):
    at: str
    worker: str = field(name="pod")
    what: str


class Refusal(Struct, frozen=True):
    at: str
    address: str
    why: str


class History:
    def __init__(self, clock: Clock, current: Generation) -> None:
        self._clock = clock
        self._members = frozenset(current.workers())
        self.generations: deque[GenerationFacts] = deque(maxlen=KEPT_GENERATIONS)
        self.events: deque[SessionEvent] = deque(maxlen=KEPT_EVENTS)
        self.refusals: deque[Refusal] = deque(maxlen=KEPT_REFUSALS)

    def published(self, generation: Generation) -> None:
        before, self._members = self._members, frozenset(generation.workers())
        came, left = self._members - before, before - self._members
        self.generations.append(
            GenerationFacts(
                number=generation.number,
                incarnation=generation.incarnation,
                at=stamp(self._clock.now()),
                reason=generation.reason,
                num_domains=len(generation.domains),
                num_workers=len(self._members),
                paused=generation.paused,
                num_came=len(came),
                num_left=len(left),
                came=sorted(came)[:NAMED],
                left=sorted(left)[:NAMED],
            )
        )

    def note(self, worker: str, what: str) -> None:
        self.events.append(SessionEvent(stamp(self._clock.now()), worker, what))

    def refused(self, address: str, why: str) -> None:
        self.refusals.append(Refusal(stamp(self._clock.now()), address, why))
