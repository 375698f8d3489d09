"""Which pods of a run to place, replace, take back, release, remove or dismiss. Pure: facts in,
decisions out.

Kubernetes keeps a pod of a machine without power for minutes, and puts its successor on the same
machine. The coordinator knows within seconds, because the pod's sessions are gone. But they are
also gone while a worker restarts, and a cut network may be repaired. So a pod is lost only when the
coordinator continues without it, it had a session before, it has had none for a while, and others
have one.

A lost pod is taken from its Job and stays as a marker: pods are not scheduled on a machine that has
one. Where that is not possible, a pod that is scheduled there is taken back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from headway.launch.failure_domains import SEEN_SECONDS, Losses, Outage
from headway.launch.script_progress import ScriptEnd, ScriptEnds
from headway.member.protocol.identity import parse

SILENT_SECONDS = 2.5
"""Silence after which a worker does not count as connected. It sends a heartbeat each second."""
LOST_SECONDS = 3.0
"""Time without a session after which a pod is lost. A killed worker is back within two."""
ALONE_SECONDS = 90.0
"""The same while no pod has a session: the coordinator itself may be cut off."""
SUSPECT_SECONDS = 90.0
"""Time without new pods for a machine that lost one without a goodbye. Kubernetes knows after 50 s
whether the machine is gone; one that is back should be used again."""
BLOCKED_SECONDS = 5.0
"""Time without a pod of its index after which a marker goes: a quota may have no room for both. A
Job makes the next pod after one second, and tries again 1, 2 and 4 s after a refusal."""
BROKEN_SECONDS = 4 * 3600.0
"""Time for which a machine with a device that failed gets no pods: a restart may repair it."""
MOST_TAKEN_BACK = 10
"""Pods taken back from such a machine, until one is left there: no other has room."""
START_SECONDS = 60.0
"""Time for a new pod on such a machine to open its first session."""
LATE_SECONDS = 5.0
"""Time beyond its grace period for a pod that is being deleted."""
KEPT = 20
"""Number of failed pods kept so that their logs can be read. A run of months has many."""


@dataclass(frozen=True)
class PodFacts:
    """What Kubernetes says about one pod."""

    name: str
    index: int
    """Node of the run."""
    machine: str | None
    """None: not scheduled yet."""
    created: float
    """Time, in seconds since 1970."""
    is_gated: bool
    """Waits for us to lift its scheduling gate."""
    delete_by: float | None
    """End of its grace period, if it is being deleted."""
    has_ended: bool
    num_affinity_terms: int = 1
    """Of node affinity: alternatives, of which a machine has to fulfil one."""
    job_uid: str | None = None
    """Of the Job that controls it."""
    suspect_until: float | None = None
    """Of a marker: when the suspicion ends."""
    is_cut_off: bool = False
    """Deleted by Kubernetes because its machine does not answer Kubernetes either."""
    has_failed: bool = False
    """Failed, but not by an error of the run itself."""
    is_uncounted: bool = False
    """Failed, and its Job has not counted that yet."""
    is_to_blame: bool = False
    """Failed by an error of the run itself."""
    last_words: str | None = None
    """Last words of a pod that is to blame."""
    how: str | None = None
    """How it failed; None: it left when it was asked to."""
    waits_for: str | None = None
    """Why it has not started, if it has a machine and has not."""
    ran_seconds: float = 0.0
    """For how long our container ran, if it has ended."""
    was_killed: bool = False
    """Ended from outside, not for its memory or disk: with its machine, most likely."""
    never_runs: bool = False
    """Failed because its image cannot be executed: so would the next one."""
    has_broken_device: bool = False
    """Failed because a device of its machine did."""
    placed_at: float | None = None
    """When it got its machine, in seconds since 1970."""
    ended_at: float | None = None
    """When it ended, if it has and somebody noted it."""


@dataclass(frozen=True)
class PlacePod:
    """Let Kubernetes schedule it."""

    pod: str
    num_affinity_terms: int
    is_off_spot: bool
    """On no spot machine: the run's minimum of nodes should not be preempted."""


@dataclass(frozen=True)
class ReplacePod:
    """It is lost: dismiss its workers and take it from its Job, so that a new pod takes its
    index."""

    pod: str
    index: int
    machine: str
    marking: Marking | None
    """It stays as a marker of its machine; None: it is deleted."""


@dataclass(frozen=True)
class Marking:
    job_uid: str
    until: float
    """When the marker is to be deleted, if nobody did so before."""


@dataclass(frozen=True)
class TakeBackPod:
    """It was scheduled on a machine that lost another: delete it, so that a new pod takes its
    index, unless the machine is back."""

    pod: str
    machine: str
    marker: str | None
    """The lost pod that is kept there: if it has ended, the machine is back and has said so."""


@dataclass(frozen=True)
class RemoveMarker:
    """Its machine may have pods again, or it takes the room of its own replacement."""

    pod: str


@dataclass(frozen=True)
class ReleasePod:
    """It has failed: take it from its Job. A Job waits longer for each failure it has counted
    before it creates the next pod; a pod that is released first is not counted, and is replaced at
    once."""

    pod: str
    index: int
    how: str | None
    ran_seconds: float = 0.0
    was_killed: bool = False
    never_runs: bool = False
    broken_machine: str | None = None
    """Its machine, if a device of that has failed."""


@dataclass(frozen=True)
class RemovePod:
    """It failed long ago, and enough newer failed pods are kept."""

    pod: str


@dataclass(frozen=True)
class DismissPod:
    """Kubernetes has ended or replaced it, or wants none: let no worker of it into the run."""

    pod: str


PodCall = PlacePod | ReplacePod | TakeBackPod | RemoveMarker | ReleasePod | RemovePod
"""Decisions that take a call to the API server."""
PodDecision = PodCall | DismissPod


@dataclass
class Suspect:
    """A machine that lost a pod without a goodbye."""

    until: float = 0.0
    present: set[str] = field(default_factory=set)
    """Pods that were on it when they were last counted: others are taken back."""
    marker: str | None = None
    """The lost pod that is kept there."""
    index: int = 0
    """Node of the run that the marker was."""
    missed: float | None = None
    """Since when no pod has that index."""
    is_broken: bool = False
    """A device of it has failed."""
    taken_back: set[str] = field(default_factory=set)
    """Pods that were scheduled there since."""


@dataclass
class PodTracker:
    """Remembers what earlier looks saw. All times are from one clock."""

    minimum_nodes: int = 0
    alone_seconds: float = ALONE_SECONDS
    heard: dict[str, float] = field(default_factory=dict)
    """When each pod last had a session."""
    suspects: dict[str, Suspect] = field(default_factory=dict)
    """By machine."""
    ended_markers: set[str] = field(default_factory=set)
    """To be deleted."""
    _has_looked: bool = False
    _broken: set[str] = field(default_factory=set)
    """Pods whose broken device is known."""

    @property
    def markers(self) -> set[str]:
        """All that are not deleted yet."""
        kept = {one.marker for one in self.suspects.values() if one.marker is not None}
        return kept | self.ended_markers

    def find_markers(self, markers: Sequence[PodFacts], pods: Sequence[PodFacts]) -> None:
        """Markers of a keeper before this one."""
        for marker in markers:
            if marker.machine is None or marker.machine in self.suspects:
                self.ended_markers.add(marker.name)
                continue
            self.suspects[marker.machine] = Suspect(
                marker.suspect_until or 0.0,
                _names_on(marker.machine, pods),
                marker.name,
                marker.index,
            )

    def forget_marker(self, name: str) -> None:
        """It was deleted."""
        self.ended_markers.discard(name)
        for suspect in self.suspects.values():
            if suspect.marker == name:
                suspect.marker = None

    def trust(self, machine: str) -> None:
        """It is back."""
        suspect = self.suspects.pop(machine, None)
        if suspect is not None and suspect.marker is not None:
            self.ended_markers.add(suspect.marker)

    def look(
        self, pods: Sequence[PodFacts], connected: Set[str], members: Set[str], now: float
    ) -> list[PodDecision]:
        """Decisions for this look, at least one a second. `connected`: pods with a session;
        `members`: pods of the current generation."""
        if not self._has_looked:
            # A new coordinator finds them in its record: they are expected to come back.
            self._has_looked = True
            self.heard = dict.fromkeys(members, now)
        self.heard.update(dict.fromkeys(connected, now))
        names = {pod.name for pod in pods}
        self.heard = {name: time for name, time in self.heard.items() if name in names}
        self._end_suspicions(pods, names, now)
        self._leave_out_broken(pods, names, now)
        lost = [pod for pod in pods if self._is_lost(pod, connected, members, now)]
        replaced = [self._replaced(pod, pods, now) for pod in lost]
        dismissed = (connected | members) - {pod.name for pod in pods if not pod.has_ended}
        return [
            *replaced,
            *(self._taken_back(pod) for pod in pods if self._is_astray(pod)),
            *(RemoveMarker(name) for name in sorted(self.ended_markers)),
            *(_released(pod) for pod in pods if pod.is_uncounted),
            *(RemovePod(pod.name) for pod in _failed(pods)[:-KEPT]),
            *(
                PlacePod(pod.name, pod.num_affinity_terms, pod.index < self.minimum_nodes)
                for pod in pods
                if pod.is_gated
            ),
            *(DismissPod(name) for name in sorted(dismissed)),
        ]

    def _end_suspicions(self, pods: Sequence[PodFacts], names: Set[str], now: float) -> None:
        """Those that are over, and markers whose replacement is not made: the machine stays suspect
        without them."""
        indices = {pod.index for pod in pods if not pod.has_ended} if self.suspects else set()
        for machine, suspect in list(self.suspects.items()):
            if suspect.until <= now:
                del self.suspects[machine]
            if suspect.index in indices or suspect.marker in names:  # the latter: not marked yet
                suspect.missed = None
            elif suspect.missed is None:
                suspect.missed = now
            is_blocked = suspect.missed is not None and now > suspect.missed + BLOCKED_SECONDS
            if suspect.marker is not None and (suspect.until <= now or is_blocked):
                self.ended_markers.add(suspect.marker)
                suspect.marker = None

    def _leave_out_broken(self, pods: Sequence[PodFacts], names: Set[str], now: float) -> None:
        """Machines with a device that failed. A pod that has ended cannot be a marker: the
        scheduler ignores it. Pods that it places there are taken back, but not for ever: it places
        them there again where no other machine has room."""
        self._broken &= names
        for pod in pods:
            if not pod.has_broken_device or pod.machine is None or pod.name in self._broken:
                continue
            self._broken.add(pod.name)
            until = (pod.ended_at or now) + BROKEN_SECONDS
            if until > now:
                suspect = self.suspects.setdefault(pod.machine, Suspect())
                suspect.until, suspect.is_broken = max(until, suspect.until), True
                suspect.present |= _names_on(pod.machine, pods)
        for pod in pods:
            if self._is_astray(pod):
                assert pod.machine is not None
                suspect = self.suspects[pod.machine]
                suspect.taken_back.add(pod.name)
                if suspect.is_broken and len(suspect.taken_back) > MOST_TAKEN_BACK:
                    self.trust(pod.machine)

    def _replaced(self, pod: PodFacts, pods: Sequence[PodFacts], now: float) -> ReplacePod:
        assert pod.machine is not None
        self.heard.pop(pod.name, None)
        suspect = self.suspects.setdefault(pod.machine, Suspect())
        suspect.until = max(suspect.until, now + SUSPECT_SECONDS)
        suspect.present |= _names_on(pod.machine, pods)
        marking = None
        # One marker is enough. A pod that is being deleted cannot be one: autoscalers ignore it.
        if suspect.marker in (None, pod.name):
            if pod.job_uid is not None and pod.delete_by is None:
                marking = Marking(pod.job_uid, suspect.until)
            suspect.marker, suspect.index = (pod.name if marking else None), pod.index
        return ReplacePod(pod.name, pod.index, pod.machine, marking)

    def _is_astray(self, pod: PodFacts) -> bool:
        """Scheduled on a suspect after the suspicion began, and never heard of."""
        suspect = self.suspects.get(pod.machine) if pod.machine is not None else None
        if suspect is None or pod.name in suspect.present or pod.name in self.heard:
            return False
        return not pod.has_ended and pod.delete_by is None

    def _taken_back(self, pod: PodFacts) -> TakeBackPod:
        assert pod.machine is not None
        return TakeBackPod(pod.name, pod.machine, self.suspects[pod.machine].marker)

    def _is_lost(self, pod: PodFacts, connected: Set[str], members: Set[str], now: float) -> bool:
        if pod.has_ended or pod.is_gated or pod.machine is None or pod.name in connected:
            return False
        is_suspect = pod.machine in self.suspects
        if pod.delete_by is not None:
            return is_suspect or pod.is_cut_off or now > pod.delete_by + LATE_SECONDS
        if pod.name in members:
            return False  # still training, for all we know: it may not have found the coordinator
        heard = self.heard.get(pod.name)
        if heard is None:
            return is_suspect and now > pod.created + START_SECONDS
        return now > heard + (LOST_SECONDS if connected else self.alone_seconds)


@dataclass
class CrashCounter:
    """Failed pods of each node. A pod that ran out of memory will run out again: do not retry it
    forever."""

    losses: defaultdict[int, Losses] = field(default_factory=lambda: defaultdict(Losses))
    """By node."""
    scripts: defaultdict[int, ScriptEnds] = field(default_factory=lambda: defaultdict(ScriptEnds))
    """The same of a script."""
    outages: defaultdict[int, Outage] = field(default_factory=lambda: defaultdict(Outage))
    """By node."""
    is_hopeless: bool = False
    """Some node's pods keep failing, and the run makes no step in between."""

    def add(self, node: int, how: str, step: int | None, now: float) -> str | None:
        """Why the run should stop, once. `step`: the newest that the run has committed; None: its
        store cannot be reached."""
        if step is None:
            return self._in_outage(node, how, now)
        self.outages.pop(node, None)
        losses = self.losses[node]
        losses.add(step, now)
        return self._stopping(how, losses.are_too_many(now), str(losses))

    def add_script(self, node: int, end: ScriptEnd, step: int | None, now: float) -> str | None:
        """The same of a script, which may have run for long without a step that is known."""
        if step is None and not end.is_late:
            return self._in_outage(node, end.words, now)
        self.outages.pop(node, None)
        ends = self.scripts[node]
        ends.add(end, step or 0, now)
        return self._stopping(end.words, ends.are_too_many(now, SEEN_SECONDS), str(ends))

    def give_up(self, how: str) -> str | None:
        """The same of a pod whose successors would all fail in this way."""
        return self._stopping(how, True, "")

    def _in_outage(self, node: int, how: str, now: float) -> str | None:
        outage = self.outages[node]
        outage.add(now)
        return self._stopping(how, outage.is_too_long(now), str(outage))

    def _stopping(self, how: str, is_enough: bool, words: str) -> str | None:
        if self.is_hopeless or not is_enough:
            return None
        self.is_hopeless = True
        return ", ".join(filter(None, (f"its pod {how}", words)))


def connected_pods(state: Mapping[str, Any]) -> set[str]:
    """Pods with a worker that sends heartbeats. A session may stay open for long after its machine
    is gone: nobody is left to close it."""
    return _pods_of(
        name
        for name, worker in state["pods"].items()
        if worker["session"] is not None and (worker["silent_seconds"] or 0.0) < SILENT_SECONDS
    )


def member_pods(state: Mapping[str, Any]) -> set[str]:
    """Pods of the current generation."""
    return _pods_of(name for domain in state["generation"]["domains"] for name in domain["pods"])


def _pods_of(workers: Iterable[str]) -> set[str]:
    return {parse(worker).node for worker in workers}


def _released(pod: PodFacts) -> ReleasePod:
    broken = pod.machine if pod.has_broken_device else None
    return ReleasePod(
        pod.name, pod.index, pod.how, pod.ran_seconds, pod.was_killed, pod.never_runs, broken
    )


def _names_on(machine: str, pods: Sequence[PodFacts]) -> set[str]:
    return {pod.name for pod in pods if pod.machine == machine}


def _failed(pods: Sequence[PodFacts]) -> list[PodFacts]:
    """Failed pods that stay until somebody removes them, oldest first."""
    failed = [
        pod for pod in pods if pod.has_failed and not pod.is_uncounted and pod.delete_by is None
    ]
    return sorted(failed, key=lambda pod: pod.created)
