"""When a run that has fewer pods than it needs gives them back, and when it tries again. Pure:
facts in, decisions out.

Two runs that each hold half of the machines, and need more, would wait for each other for ever. So
neither keeps pods that it cannot train with for longer than the target says. Both may try again at
the same time and meet again: the pause is random, and doubles each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import random

from headway.kube.gave_back import GaveBack
from headway.launch.job_decisions import JobFacts
from headway.launch.pod_decisions import PodFacts

MOST_PAUSE_SECONDS = 3600.0
"""A run that has waited for long must still notice when the others have ended."""
LEAST_SHARE, MOST_SHARE = 0.5, 1.5
"""Of a pause, by chance."""


@dataclass(frozen=True)
class ScarcityRules:
    give_back_seconds: float
    """How long a run may hold fewer pods than it needs."""
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
        return min(self.try_again_seconds * 2.0 ** min(attempt, 12) * share, MOST_PAUSE_SECONDS)


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


@dataclass
class ScarcityTracker:
    """Remembers what earlier looks saw. A new one counts anew how long pods are held, and finds in
    the mark what was given back."""

    rules: ScarcityRules
    needed: int
    """Fewest nodes that the run trains with."""
    chance: Callable[[], float] = random
    """A random number from 0 to 1."""
    attempt: int = 0
    """Of the next mark."""
    _short_since: float | None = None

    def look(
        self, job: JobFacts, pods: Sequence[PodFacts], now: float
    ) -> list[GiveBack | TryAgain]:
        """At most one decision. One that could not be carried out is made again at the next
        look."""
        if job.gave_back is not None:
            self._short_since, self.attempt = None, job.gave_back.attempt + 1
            return [TryAgain(job.gave_back)] if self._is_due(job.gave_back, pods, now) else []
        held = _num_held(pods)
        if job.is_suspended or job.has_ended or not 0 < held < self.needed:
            self._short_since = None
            if held >= self.needed:
                self.attempt = 0
            return []
        if self._short_since is None:
            self._short_since = now
        short_seconds = now - self._short_since
        if short_seconds < self.rules.give_back_seconds:
            return []
        pause = self.rules.pause_seconds(self.attempt, self.chance())
        mark = GaveBack(now + pause, self.attempt, held, self.needed)
        return [GiveBack(mark, short_seconds, pause)]

    def _is_due(self, mark: GaveBack, pods: Sequence[PodFacts], now: float) -> bool:
        """Not while a pod of before has not ended. A time that is too far away was written by a
        clock that is wrong."""
        if any(not pod.has_ended for pod in pods):
            return False
        return not now < mark.retry_at <= now + MOST_PAUSE_SECONDS


def _num_held(pods: Sequence[PodFacts]) -> int:
    """Pods that have a machine, and keep it."""
    return sum(
        pod.machine is not None and not pod.has_ended and pod.delete_by is None for pod in pods
    )
