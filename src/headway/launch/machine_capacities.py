"""Which machines of a run are spot machines, by their label. One list of the spot machines answers
for all of them; where only `get` is allowed, they are asked for one by one, a few at a look."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from urllib.parse import urlencode

from headway.clock import Clock
from headway.errors import HeadwayError
from headway.kube.api_errors import ClusterUnreachable, Forbidden
from headway.kube.client import KubeClient
from headway.state.spent_money import Capacity

PAGE = 500
NAMES_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
"""A list without the status of its objects: that of a node has all of its images."""
LIST_SECONDS = 10.0
"""Least time between two lists: machines that come one by one share one."""
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 2.0, 300.0
"""After a call that failed; twice as long after each further one."""
MOST_GETS = 20
"""Machines at a look, where each needs a call of its own."""


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
        self._may_list = self._may_get = True
        self._next = -inf
        """When the API server may be asked again."""
        self._pause = PAUSE_SECONDS

    def of(self, machine: str) -> Capacity:
        """`unknown` also if it was not possible to ask yet."""
        return self._known.get(machine, "unknown")

    def look(self, there: Iterable[str], gone: Iterable[str]) -> None:
        """Asks about machines that it has not asked about. `there`: those that pods are on.
        `gone`: those of pods that have ended, which may not exist any more."""
        there = [one for one in dict.fromkeys(there) if one not in self._known]
        gone = [one for one in dict.fromkeys(gone) if one not in self._known]
        now = self._clock.monotonic()
        if not (there or gone) or now < self._next or not self._may_get:
            return
        try:
            if self._may_list:
                self._list(there, gone)
                self._next = now + LIST_SECONDS
            else:
                for machine in [*there, *gone][:MOST_GETS]:
                    self._known[machine] = self._read(machine)
            self._pause = PAUSE_SECONDS
        except ClusterUnreachable as error:
            self._next = now + max(self._pause, error.retry_after_seconds)
            self._pause = min(LONGEST_PAUSE_SECONDS, 2 * self._pause)
        except Forbidden:
            if self._may_list:
                self._may_list = False  # at the next look, one by one
                return
            self._may_get = False
            self._say(
                "labels of machines cannot be read: those that may be spot machines count as on "
                "demand. To count them by what they are, the coordinator needs the right to list "
                "nodes"
            )

    def _list(self, there: Iterable[str], gone: Iterable[str]) -> None:
        spot = self._spot_machines()
        for machine in there:
            self._known[machine] = "spot" if machine in spot else "on_demand"
        for machine in gone:
            self._known[machine] = "spot" if machine in spot else "unknown"

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

    def _read(self, machine: str) -> Capacity:
        try:
            node = self._kube.call("GET", f"api/v1/nodes/{machine}")
        except (ClusterUnreachable, Forbidden):
            raise
        except HeadwayError:  # such a node is gone
            return "unknown"
        key, value = self._label
        is_spot = (node["metadata"].get("labels") or {}).get(key) == value
        return "spot" if is_spot else "on_demand"
