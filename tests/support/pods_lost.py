"""Losing pods that prepare data, one after the other."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from cluster_tool import faults
from headway.clock import seconds_of
from support.lab import Lab

RAN_SECONDS = 8.0
"""Enough to have begun a part."""


class PodsLost:
    """Evicted, deleted without grace, and killed, in turn; each time of the part that has lost the
    fewest, since Kubernetes waits longer after each loss of a part."""

    def __init__(self, lab: Lab) -> None:
        self.num = 0
        self.of_part: Counter[str] = Counter()
        self._lab = lab
        self._seen: set[str] = set()

    def lose_one(self) -> int:
        """Returns the number of losses so far."""
        found = {
            pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]: pod
            for pod in self._lab.pods("data")
            if pod["metadata"]["name"] not in self._seen and _ran_seconds(pod) > RAN_SECONDS
        }
        if found:
            part = min(found, key=lambda part: self.of_part[part])
            self._lose(found[part])
            self.of_part[part] += 1
            self.num += 1
        return self.num

    def _lose(self, pod: dict[str, Any]) -> None:
        name, api = pod["metadata"]["name"], self._lab.cluster.api
        self._seen.add(name)
        match self.num % 3:
            case 0:
                assert faults.evict(api, self._lab.namespace, name)
            case 1:
                path = f"/api/v1/namespaces/{self._lab.namespace}/pods/{name}"
                api.delete(path, gracePeriodSeconds="0")
            case _:
                for pid in self._lab.node_of(pod).pod_pids(pod["metadata"]["uid"]):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


def _ran_seconds(pod: dict[str, Any]) -> float:
    (container,) = pod["status"].get("containerStatuses", [{}])
    began = container.get("state", {}).get("running", {}).get("startedAt")
    return time.time() - seconds_of(began) if began else 0.0
