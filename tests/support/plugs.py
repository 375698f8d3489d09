"""A machine of a run on the test cluster loses its power, and how long it takes to go on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster_tool import faults
from cluster_tool.node import Node
from support.lab import RECOVER_SECONDS, Lab
from support.stolen_time import Stopwatch
from support.waiting import wait_for


@dataclass(frozen=True)
class Lost:
    """A machine, and seconds since its plug was pulled, without what the host took."""

    next_step: float
    healed: float
    """All workers are members again, none of them on that machine."""
    node: Node
    astray: set[str]
    """Pods that were scheduled on it nevertheless."""


def away_from_the_coordinator(lab: Lab) -> Mapping[str, Any]:
    """A worker's pod."""
    keeper = lab.node_of(lab.pods("coordinator")[0]).name
    return next(pod for pod in lab.pods() if lab.node_of(pod).name != keeper)


def pull_the_plug(lab: Lab, seconds: float = RECOVER_SECONDS) -> Lost:
    """Of a machine with workers and without the coordinator. It stays off. `seconds`: how long to
    wait for the next step, and then for all workers."""
    num_workers = len(lab.pods())
    node, before = lab.node_of(away_from_the_coordinator(lab)), lab.generation()["generation"]
    scheduled = lab.scheduled_on(node)
    faults.pull_plug(node)
    watch, struck = Stopwatch(), time.time()
    stepped = wait_for("the next step", lambda: lab.first_step_of(before + 1), seconds)
    next_step = stepped - struck - watch.lost_seconds
    lab.wait_for_workers(num_workers, seconds)
    healed = watch.seconds
    assert node.name not in {lab.node_of(pod).name for pod in lab.pods()}
    return Lost(next_step, healed, node, lab.scheduled_on(node) - scheduled)
