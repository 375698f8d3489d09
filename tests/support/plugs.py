"""A machine of a run on the test cluster loses its power, and how long it takes to go on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import httpx

from cluster_tool import faults
from cluster_tool.api import ApiError
from cluster_tool.node import Node
from support.lab import RECOVER_SECONDS, Lab
from support.stolen_time import Stopwatch
from support.waiting import wait_for

SAMPLE_SECONDS = 0.2


@dataclass(frozen=True)
class Lost:
    """A machine, and seconds since its plug was pulled, without what the host took."""

    next_step: float
    healed: float
    """All workers are members again, none of them on that machine."""
    node: Node
    astray: dict[str, float]
    """Pods that were scheduled on it nevertheless, and for how many seconds they were there."""


class Strays:
    """Pods that are scheduled on a dead machine, looked for all the time."""

    def __init__(self, lab: Lab, node: Node) -> None:
        self._lab = lab
        self._node = node
        self._before = lab.scheduled_on(node)
        self._seen: dict[str, tuple[float, float]] = {}
        self._end = Event()
        self._thread = Thread(target=self._look, daemon=True)

    def __enter__(self) -> Strays:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def found(self) -> dict[str, float]:
        """Seconds by pod; 0 for one that was gone before it could be seen."""
        names = self._lab.scheduled_on(self._node) - self._before
        spans = {name: self._seen.get(name, (0.0, 0.0)) for name in names}
        return {name: round(last - first, 1) for name, (first, last) in spans.items()}

    def _look(self) -> None:
        path = f"/api/v1/namespaces/{self._lab.namespace}/pods"
        here = f"spec.nodeName={self._node.name}"
        while not self._end.wait(SAMPLE_SECONDS):
            with suppress(ApiError, httpx.TransportError):
                for pod in self._lab.cluster.api.items(path, fieldSelector=here):
                    name, now = pod["metadata"]["name"], time.monotonic()
                    self._seen[name] = (self._seen.get(name, (now, now))[0], now)


def away_from_the_coordinator(lab: Lab) -> Mapping[str, Any]:
    """A worker's pod."""
    keeper = lab.node_of(lab.coordinator()).name
    return next(pod for pod in lab.pods() if lab.node_of(pod).name != keeper)


def pull_the_plug(lab: Lab, seconds: float = RECOVER_SECONDS) -> Lost:
    """Of a machine with workers and without the coordinator. It stays off. `seconds`: how long to
    wait for the next step, and then for all workers."""
    num_workers = len(lab.pods())
    node, before = lab.node_of(away_from_the_coordinator(lab)), lab.generation()["generation"]
    with Strays(lab, node) as strays:
        faults.pull_plug(node)
        watch, struck = Stopwatch(), time.time()
        stepped = wait_for("the next step", lambda: lab.first_step_of(before + 1), seconds)
        next_step = stepped - struck - watch.lost_seconds
        lab.wait_for_workers(num_workers, seconds)
        healed = watch.seconds
    assert node.name not in {lab.node_of(pod).name for pod in lab.pods()}
    return Lost(next_step, healed, node, strays.found())
