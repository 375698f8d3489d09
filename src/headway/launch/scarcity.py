"""When a run that has fewer pods than it needs gives them back, and when it tries again. Pure:
facts in, decisions out.

Two runs that each hold half of the machines, and need more, would wait for each other for ever. So
neither keeps pods that it cannot train with for longer than the target says, be they too few or
such that do not start: their image cannot be pulled, or a volume not mounted. Both may try again at
the same time and meet again: the pause is random, and doubles each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import random

from headway.kube.gave_back import GaveBack
from headway.launch.job_decisions import JobFacts
from headway.launch.pod_decisions import PodFacts
from headway.state.rewinds import Record
from headway.state.status import newest_event

MOST_PAUSE_SECONDS = 3600.0
"""On average. A run that has waited for long must still notice when the others have ended."""
LEAST_SHARE, MOST_SHARE = 0.5, 1.5
"""Of a pause, by chance."""
CLOCKS_DIFFER_SECONDS = 300.0
"""From one keeper's machine to the next one's, at most."""


@dataclass(frozen=True)
class ScarcityRules:
    give_back_seconds: float
    """How long a run may hold fewer pods than it needs, or enough of which too few start."""
    try_again_seconds: float
    """Pause before it tries again, the first time, on average."""

    def __str__(self) -> str:
        return f"{self.give_back_seconds:g} {self.try_again_seconds:g}"

    @classmethod
    def parse(cls, text: str) -> ScarcityRules:
        """Of `str`."""
        give_back, try_again = text.split()
        return cls(float(give_back), float(try_again))

    def pause_seconds(self, attempt: int, chance: float) -> float:
        """`chance`: from 0 to 1."""
        share: float = LEAST_SHARE + (MOST_SHARE - LEAST_SHARE) * chance
        # Beyond a dozen doublings it is the longest anyhow.
        average = min(self.try_again_seconds * 2.0 ** min(attempt, 12), MOST_PAUSE_SECONDS)
        return average * share


@dataclass(frozen=True)
class GiveBack:
    """Suspend the workers' Job, with this mark."""

    mark: GaveBack
    seconds: float
    """How long it had fewer than it needs."""
    pause_seconds: float


@dataclass(frozen=True)
class TryAgain:
    """Take the mark off, and start the Job."""

    mark: GaveBack
    kind: str | None = None
    """Kind of accelerator to have from now on, if there are several."""


@dataclass(frozen=True)
class RemoveMark:
    """Take the mark off a Job that somebody has started otherwise: suspended again, it would look
    as if pods had been given back."""


ScarcityDecision = GiveBack | TryAgain | RemoveMark


@dataclass
class ScarcityTracker:
    """Remembers what earlier looks saw. A new one counts anew how long pods are held, and finds in
    the mark, or in the journal, what was given back."""

    rules: ScarcityRules
    needed: int
    """Fewest nodes that the run trains with."""
    kinds: Sequence[str] = ()
    """Kinds of accelerator that will do, the best first; empty: there is no choice."""
    chance: Callable[[], float] = random
    """A random number from 0 to 1."""
    attempt: int = 0
    """Pauses so far, since the run had what it needs."""
    _short_since: float | None = None
    """It has too few machines, without a break."""
    _stuck_since: float | None = None
    """It has enough, and too few pods have started. Time of its own: machines may have come late,
    and an image takes minutes."""

    def remember(self, events: Sequence[Record]) -> None:
        """Attempts of a keeper before this one; those before the run trained are over."""
        newest = newest_event(events, "gave_back", "started")
        if newest is not None and newest["event"] == "gave_back":
            self.attempt = newest["attempt"]

    def look(self, job: JobFacts, pods: Sequence[PodFacts], now: float) -> list[ScarcityDecision]:
        """At most one decision. One that could not be carried out is made again at the next
        look."""
        if job.gave_back is not None:
            self._short_since = self._stuck_since = None
            self.attempt = job.gave_back.attempt
            if not self._is_due(job.gave_back, pods, now):
                return []
            return [TryAgain(job.gave_back, self._next_kind(job))]
        if job.has_stale_mark:
            return [RemoveMark()]
        held = _held(pods)
        stuck = [pod.waits_for for pod in held if pod.waits_for is not None]
        # What the watch shows may be old.
        has_enough = len(held) - len(stuck) >= self.needed or job.ready >= self.needed
        if has_enough:
            self.attempt = 0
        if job.is_suspended or job.has_ended or has_enough:
            self._short_since = self._stuck_since = None
            return []
        seconds = self._count(len(held), now)
        if seconds < self.rules.give_back_seconds:
            return []
        attempt, pause = self.attempt, 0.0
        if held and self._next_kind(job) in (None, *self.kinds[:1]):  # none is left to try first
            attempt, pause = attempt + 1, self.rules.pause_seconds(attempt, self.chance())
        why = Counter(stuck).most_common(1)[0][0] if stuck else ""
        mark = GaveBack(now + pause, attempt, len(held), self.needed, len(stuck), why)
        return [GiveBack(mark, seconds, pause)]

    def _count(self, num_held: int, now: float) -> float:
        """How long it has been so."""
        # Pods without a machine hold nothing. But machines of another kind may be free.
        is_short = num_held < self.needed and (num_held > 0 or len(self.kinds) > 1)
        if not is_short:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
        if num_held == 0:
            self._stuck_since = None
        elif num_held >= self.needed and self._stuck_since is None:
            self._stuck_since = now
        began = [time for time in (self._short_since, self._stuck_since) if time is not None]
        return now - min(began, default=now)

    def _next_kind(self, job: JobFacts) -> str | None:
        """After that of the Job; after the last, the first again."""
        if not self.kinds:
            return None
        is_known = job.accelerators in self.kinds
        number = self.kinds.index(job.accelerators or "") + 1 if is_known else 0
        return self.kinds[number % len(self.kinds)]

    def _is_due(self, mark: GaveBack, pods: Sequence[PodFacts], now: float) -> bool:
        """Not while a pod of before has not ended. A time that is too far away was written by a
        clock that is wrong."""
        if any(not pod.has_ended for pod in pods):
            return False
        longest = MOST_SHARE * MOST_PAUSE_SECONDS + CLOCKS_DIFFER_SECONDS
        return not now < mark.retry_at <= now + longest


def _held(pods: Sequence[PodFacts]) -> list[PodFacts]:
    """Pods that have a machine, and keep it."""
    return [
        pod
        for pod in pods
        if pod.machine is not None and not pod.has_ended and pod.delete_by is None
    ]
