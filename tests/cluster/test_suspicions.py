"""The marker of a machine that lost its power: how its suspicion ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster_tool import faults
from cluster_tool.node import Node
from headway.launch.pod_decisions import SUSPECT_SECONDS
from support.lab import Lab, is_ready
from support.plugs import away_from_the_coordinator
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.long(
        "each waits for a suspicion to end, and the keeper's decisions are unit tests"
    ),
]

MARKED_SECONDS = 60.0
HEALED_SECONDS = 240.0
"""Without a marker the scheduler likes the dead machine best, for the minute that Kubernetes takes
to notice; pods are taken back from it again and again."""
LATE_SECONDS = 60.0


@contextmanager
def trained(lab: Lab) -> Iterator[None]:
    """Two workers, each on a machine of its own, apart from the coordinator."""
    lab.headway("run", "--on", "lab", "--nodes", "2")
    lab.wait_for_workers(2)
    lab.wait_for_step(lab.step() + 5)
    yield
    lab.headway("stop")
    assert lab.markers() == []
    lab.require_exact()


def lose_one(lab: Lab) -> Node:
    """Pulls the plug of a machine with a worker."""
    node = lab.node_of(away_from_the_coordinator(lab))
    faults.pull_plug(node)
    return node


def wait_for_marker(lab: Lab) -> dict[str, Any]:
    (marker,) = wait_for("a marker", lab.markers, MARKED_SECONDS)
    return marker


def test_a_quota_of_exactly_the_runs_pods(lab: Lab) -> None:
    """It has no room for a marker beside the replacement: the marker goes."""
    with trained(lab):
        quota = {"metadata": {"name": "all"}, "spec": {"hard": {"pods": "3"}}}
        path = f"/api/v1/namespaces/{lab.namespace}/resourcequotas"
        lab.cluster.api.create(path, quota)
        wait_for("the quota", lambda: _used(lab, f"{path}/all") == "3")
        before, struck = lab.generation()["generation"], time.monotonic()
        node = lose_one(lab)
        wait_for_marker(lab)
        wait_for("the marker to go", lambda: not lab.markers(), MARKED_SECONDS)
        wait_for("it to be lost", lambda: lab.generation()["generation"] > before)
        lab.wait_for_workers(2, HEALED_SECONDS)
        print(f"healed after {time.monotonic() - struck:.1f} s, astray: {lab.scheduled_on(node)}")
        assert node.name not in lab.machines_of_workers()


def _used(lab: Lab, path: str) -> str | None:
    used: str | None = lab.cluster.api.get(path).get("status", {}).get("used", {}).get("pods")
    return used


def test_a_new_keeper_ends_the_suspicion_of_the_one_before(lab: Lab) -> None:
    with trained(lab):
        node, struck = lose_one(lab), time.monotonic()
        marker = wait_for_marker(lab)
        coordinator = lab.pods("coordinator")[0]["metadata"]
        assert faults.evict(lab.cluster.api, lab.namespace, coordinator["name"])
        wait_for("another keeper", lambda: _is_kept_by_another(lab, coordinator["uid"]))
        until = float(marker["metadata"]["annotations"]["headway/suspect-until"])
        assert lab.markers() or time.time() > until
        lab.wait_for_workers(2, HEALED_SECONDS)
        assert node.name not in lab.machines_of_workers()
        wait_for("the marker to go", lambda: not lab.markers(), SUSPECT_SECONDS + LATE_SECONDS)
        print(f"the marker went after {time.monotonic() - struck:.1f} s")


def _is_kept_by_another(lab: Lab, uid: str) -> bool:
    found = lab.pods("coordinator")
    return any(pod["metadata"]["uid"] != uid and is_ready(pod) for pod in found)


def test_a_machine_that_is_back_is_used_at_once(lab: Lab) -> None:
    """The others take no pods: the replacement can only go where the lost one was."""
    with trained(lab):
        node, struck = lose_one(lab), time.monotonic()
        marker = wait_for_marker(lab)
        for other in lab.cluster.nodes:
            if other is not node:
                faults.cordon(other, lab.cluster.api)
        faults.put_back(node, lab.cluster.api)
        lab.wait_for_workers(2, HEALED_SECONDS)
        print(f"back after {time.monotonic() - struck:.1f} s")
        until = float(marker["metadata"]["annotations"]["headway/suspect-until"])
        there = [pod for pod in lab.pods() if pod["spec"]["nodeName"] == node.name]
        assert there
        print(f"{until - time.time():.1f} s before the suspicion would have ended")
