"""Markers of other runs that nobody ends, because their keeper is gone: each closes its machine to
the workers of all runs in the namespace."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from headway.clock import Clock
from headway.kube.client import KubeClient
from headway.kube.names import MANAGED_BY, SUSPECT
from headway.launch.pod_decisions import PodFacts
from headway.launch.pod_watch import pod_facts

WAITING_SECONDS = 30.0
"""Time without a machine after which a pod of ours may be kept from one."""
INTERVAL_SECONDS = 60.0
FORGOTTEN_SECONDS = 120.0
"""Time after the end of a suspicion, for a keeper that is late and for clocks that differ."""


class ForgottenMarkers:
    def __init__(self, kube: KubeClient, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock
        self._looked = -inf

    def delete(self, pods: Sequence[PodFacts]) -> list[str]:
        """Deletes them, and returns their names. Looks for them once a minute, and only while one
        of `pods` waits for a machine."""
        now = self._clock.now()
        if now < self._looked + INTERVAL_SECONDS or not any(_waits(pod, now) for pod in pods):
            return []
        self._looked = now
        found = [
            pod_facts(pod) for pod in self._kube.cached_pods(f"{MANAGED_BY}=headway,{SUSPECT}=true")
        ]
        names = [
            marker.name
            for marker in found
            if now > (marker.suspect_until or marker.created) + FORGOTTEN_SECONDS
        ]
        for name in names:
            self._kube.delete_pod(name, grace_seconds=0)
        return names


def _waits(pod: PodFacts, now: float) -> bool:
    is_waiting = pod.machine is None and not pod.is_gated and not pod.has_ended
    return is_waiting and now > pod.created + WAITING_SECONDS
