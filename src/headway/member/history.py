"""What has happened lately, for people: bounded, and of no consequence."""

from __future__ import annotations

from collections import deque

from msgspec import Struct

from headway.clock import Clock, stamp
from headway.member.generation import Generation

KEPT_GENERATIONS = 100
KEPT_EVENTS = 500
KEPT_REFUSALS = 50
"""Apart from the others: anyone can make as many as they like."""
NAMED = 16
"""Pods that are named; of more than these there is the number."""


class GenerationFacts(Struct, frozen=True):
    number: int
    incarnation: int
    at: str
    reason: str
    num_domains: int
    num_pods: int
    paused: bool
    num_came: int
    num_left: int
    came: list[str]
    """Some of them."""
    left: list[str]


class SessionEvent(Struct, frozen=True):
    at: str
    pod: str
    what: str


class Refusal(Struct, frozen=True):
    at: str
    address: str
    why: str


class History:
    def __init__(self, clock: Clock, current: Generation) -> None:
        self._clock = clock
        self._members = frozenset(current.pods())
        self.generations: deque[GenerationFacts] = deque(maxlen=KEPT_GENERATIONS)
        self.events: deque[SessionEvent] = deque(maxlen=KEPT_EVENTS)
        self.refusals: deque[Refusal] = deque(maxlen=KEPT_REFUSALS)

    def published(self, generation: Generation) -> None:
        before, self._members = self._members, frozenset(generation.pods())
        came, left = self._members - before, before - self._members
        self.generations.append(
            GenerationFacts(
                number=generation.number,
                incarnation=generation.incarnation,
                at=stamp(self._clock.now()),
                reason=generation.reason,
                num_domains=len(generation.domains),
                num_pods=len(self._members),
                paused=generation.paused,
                num_came=len(came),
                num_left=len(left),
                came=sorted(came)[:NAMED],
                left=sorted(left)[:NAMED],
            )
        )

    def note(self, pod: str, what: str) -> None:
        self.events.append(SessionEvent(stamp(self._clock.now()), pod, what))

    def refused(self, address: str, why: str) -> None:
        self.refusals.append(Refusal(stamp(self._clock.now()), address, why))
