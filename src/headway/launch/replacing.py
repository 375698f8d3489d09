"""Which pods of a run are to be placed, and which are lost. Pure: facts in, actions out.

Kubernetes keeps a pod of a machine without power for minutes, and puts its successor on the same
machine. The coordinator knows within seconds, for the pod's sessions are gone; but so they are
while a worker is started again, and a cut network may be mended. So a pod is given up only when the
coordinator goes on without it, and it was heard of before, is not any more for a while, and others
are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

LOST_SECONDS = 3.0
"""A worker that was killed is back in its pod within two."""
ALONE_SECONDS = 90.0
"""When nobody is heard of: then it may be the coordinator's own network."""
SUSPECT_SECONDS = 90.0
"""How long nothing is placed on a machine that has lost a pod without a goodbye. Kubernetes knows
after 50 s whether it is gone; and one that is back shall be used."""
START_SECONDS = 60.0
"""For a pod on such a machine to be heard of at all."""
LATE_SECONDS = 5.0
"""Beyond its grace, for a pod that was told to go."""
KEPT = 20
"""Failed pods whose logs can still be read. A run of months has many."""


@dataclass(frozen=True)
class PodFacts:
    name: str
    index: int
    node: str | None
    """The machine; None: not placed yet."""
    created: float
    is_gated: bool
    gone_by: float | None
    """It was told to go, and its grace ends then."""
    has_ended: bool
    is_cut_off: bool = False
    """Its machine does not answer Kubernetes either, which has told it to go."""
    has_failed: bool = False
    """By no error of the run's own."""
    is_uncounted: bool = False
    """And its Job has not counted that yet."""
    is_to_blame: bool = False
    """It has failed by an error of the run's own..."""
    left: str | None = None
    """... and has left these words."""
    how: str | None = None
    """It has failed; None: it has left as it was asked to."""


@dataclass(frozen=True)
class Place:
    """May be placed, but on none of these machines."""

    pod: str
    index: int
    not_on: tuple[str, ...]


@dataclass(frozen=True)
class Replace:
    """Is not waited for any longer; a new one takes its index."""

    pod: str
    index: int
    node: str | None


@dataclass(frozen=True)
class Release:
    """Has failed. Its Job makes another one later and later, the more it has counted; one that is
    taken from it before is no failure, and is replaced at once."""

    pod: str
    index: int
    how: str | None


@dataclass(frozen=True)
class Remove:
    """Has failed long ago: others are there to be looked at."""

    pod: str


Action = Place | Replace | Release | Remove


@dataclass
class Keeping:
    """What was seen, and what follows from it. Times are of one clock."""

    heard: dict[str, float] = field(default_factory=dict)
    """When each pod last had a session."""
    suspects: dict[str, float] = field(default_factory=dict)
    """Until when nothing is placed on a machine."""

    def expect(self, pods: Iterable[str], now: float) -> None:
        """Members of the generation that this coordinator found: they are to come back."""
        for name in pods:
            self.heard.setdefault(name, now)

    def look(
        self, pods: Sequence[PodFacts], present: Set[str], members: Set[str], now: float
    ) -> list[Action]:
        """`present`: names of the pods that have a session; `members`: of those that the run counts
        on. Asked at least every second."""
        self.heard.update(dict.fromkeys(present, now))
        self.suspects = {node: until for node, until in self.suspects.items() if until > now}
        names = {pod.name for pod in pods}
        self.heard = {name: time for name, time in self.heard.items() if name in names}
        lost = [pod for pod in pods if self._is_lost(pod, present, members, now)]
        for pod in lost:
            if pod.node is not None:
                self.suspects[pod.node] = now + SUSPECT_SECONDS
            self.heard.pop(pod.name, None)
        suspects = tuple(sorted(self.suspects))
        return [
            *(Replace(pod.name, pod.index, pod.node) for pod in lost),
            *(Release(pod.name, pod.index, pod.how) for pod in pods if pod.is_uncounted),
            *(Remove(pod.name) for pod in _looked_at(pods)[:-KEPT]),
            *(Place(pod.name, pod.index, suspects) for pod in pods if pod.is_gated),
        ]

    def _is_lost(self, pod: PodFacts, present: Set[str], members: Set[str], now: float) -> bool:
        if pod.has_ended or pod.is_gated or pod.node is None or pod.name in present:
            return False
        suspected = pod.node in self.suspects
        if pod.gone_by is not None:
            return suspected or pod.is_cut_off or now > pod.gone_by + LATE_SECONDS
        if pod.name in members:
            return False  # it trains, for all the coordinator knows, and may not have found it yet
        heard = self.heard.get(pod.name)
        if heard is None:
            return suspected and now > pod.created + START_SECONDS
        return now > heard + (LOST_SECONDS if present else ALONE_SECONDS)


def _looked_at(pods: Sequence[PodFacts]) -> list[PodFacts]:
    """Those that have failed, the oldest first. Whoever was told to go goes by itself."""
    failed = [
        pod for pod in pods if pod.has_failed and not pod.is_uncounted and pod.gone_by is None
    ]
    return sorted(failed, key=lambda pod: pod.created)
