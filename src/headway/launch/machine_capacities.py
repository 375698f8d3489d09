"""Which machines of a run are spot machines, by their label. One list of all spot machines answers
for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from urllib.parse import urlencode

from headway.clock import Clock
from headway.kube.api_errors import ClusterUnreachable, Forbidden
from headway.kube.client import KubeClient
from headway.state.spent_money import Capacity

PAGE = 500
NAMES_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
"""A list without the status of its objects: that of a node has all of its images."""
LIST_SECONDS = 10.0
"""Least time between two lists: machines that come one by one share one."""
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 300.0
"""After a list that failed; twice as long after each further one."""


class MachineCapacities:
    def __init__(
        self,
        kube: KubeClient,
        spot_label: tuple[str, str],
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._kube = kube
        self._label = spot_label
        self._clock = clock
        self._say = say
        self._known: dict[str, Capacity] = {}
        self._next = -inf
        """When the API server may be asked again."""
        self._pause = PAUSE_SECONDS

    def of(self, machine: str) -> Capacity:
        """`unknown` also if it was not possible to ask yet."""
        return self._known.get(machine, "unknown")

    def look(self, machines: Iterable[str]) -> None:
        """Ask about those that it has not asked about."""
        new, now = {*machines} - self._known.keys(), self._clock.monotonic()
        if not new or now < self._next:
            return
        try:
            spot = self._spot_machines()
        except ClusterUnreachable as error:
            self._next = now + max(self._pause, error.retry_after_seconds)
            self._pause = min(LONGEST_PAUSE_SECONDS, 2 * self._pause)
        except Forbidden:
            self._next = inf
            self._say(
                "labels of machines cannot be read: those that may be spot machines count as on "
                "demand. To count them by what they are, the coordinator needs the right to list "
                "nodes"
            )
        else:
            for machine in new:
                self._known[machine] = "spot" if machine in spot else "on_demand"
            self._next, self._pause = now + LIST_SECONDS, PAUSE_SECONDS

    def _spot_machines(self) -> set[str]:
        """By name."""
        found: set[str] = set()
        asked = {"labelSelector": "=".join(self._label), "limit": PAGE}
        while True:
            answer = self._kube.call("GET", f"api/v1/nodes?{urlencode(asked)}", accept=NAMES_ONLY)
            found |= {one["metadata"]["name"] for one in answer["items"]}
            if not (more := answer["metadata"].get("continue")):
                return found
            asked["continue"] = more
