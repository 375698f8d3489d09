"""Faults of the test cluster are what they are called, and can be undone."""

from __future__ import annotations

import errno
import socket
import threading
import time
from contextlib import suppress

import httpx
import psutil
import pytest

from cluster_tool import faults, pods, slow_dns
from cluster_tool.cluster import Cluster
from cluster_tool.network import HOST, connects
from cluster_tool.node import Node
from cluster_tool.readiness import condition, is_ready
from support.stolen_time import Stopwatch
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.long("tests the test cluster itself"),
]

SLEEP = ("sleep", "1000")
SERVE = ("httpd", "-f", "-p", "8080", "-h", "/scratch")
KUBELET = 10250


def _start(cluster: Cluster, namespace: str, node: Node, *command: str) -> str:
    """The address of a running pod that is named as its node."""
    assert cluster.image
    pods.start(cluster.api, namespace, node.name, cluster.image, command, node.name)
    return pods.wait_running(cluster.api, namespace, node.name)


def _pressure(cluster: Cluster, node: Node) -> str:
    state = cluster.api.get(f"/api/v1/nodes/{node.name}")
    return str(condition(state, "DiskPressure").get("status"))


def test_a_pulled_plug_is_sudden_and_silent(own_cluster: Cluster, namespace: str) -> None:
    lost, other = own_cluster.nodes[0], own_cluster.nodes[1]
    address = _start(own_cluster, namespace, lost, *SERVE)
    _start(own_cluster, namespace, other, *SLEEP)
    before, others = lost.pod_pids(), other.pod_pids()
    assert before
    assert others
    with socket.create_connection((address, 8080), timeout=5) as peer:
        watch = Stopwatch()
        faults.pull_plug(lost)
        assert watch.seconds < 10
        assert not [pid for pid in before if psutil.pid_exists(pid)]
        assert others <= other.pod_pids()
        # A machine without power does not say that its connections are closed.
        peer.settimeout(3)
        with pytest.raises(TimeoutError):
            peer.recv(1)
    # Kubernetes does not know yet.
    assert is_ready(own_cluster.api, lost.name)
    assert pods.phase(own_cluster.api, namespace, lost.name) == "Running"

    faults.put_back(lost, own_cluster.api)
    pods.start(own_cluster.api, namespace, "again", own_cluster.image or "", SLEEP, lost.name)
    pods.wait_running(own_cluster.api, namespace, "again")


def test_a_cut_network_lets_the_node_run_on(own_cluster: Cluster, namespace: str) -> None:
    node = own_cluster.nodes[1]
    address = _start(own_cluster, namespace, node, *SERVE)
    before = node.pod_pids()
    assert connects(address, 8080)
    assert connects(node.address, KUBELET)
    faults.cut_network(node)
    assert not connects(address, 8080)
    assert not connects(node.address, KUBELET)
    assert before <= node.pod_pids()
    faults.mend_network(node)
    wait_for("the node to be reached", lambda: connects(node.address, KUBELET))
    wait_for("the pod to be reached", lambda: connects(address, 8080))


def test_the_api_server_goes_and_comes_back(own_cluster: Cluster, namespace: str) -> None:
    node = own_cluster.nodes[2]
    _start(own_cluster, namespace, node, *SLEEP)
    before = node.pod_pids()
    faults.stop_api(own_cluster.control_plane)
    with pytest.raises(httpx.TransportError):
        own_cluster.api.get("/api/v1/nodes")
    assert before <= node.pod_pids()
    faults.start_api(own_cluster.control_plane, own_cluster.api)
    assert pods.phase(own_cluster.api, namespace, node.name) == "Running"


def test_a_reclaimed_node_has_until_its_deadline(own_cluster: Cluster, namespace: str) -> None:
    node = own_cluster.nodes[0]
    _start(own_cluster, namespace, node, *SLEEP)
    notice_seconds = 8.0
    reclaiming = threading.Thread(
        target=faults.reclaim, args=(node, own_cluster.api, notice_seconds)
    )
    started = time.monotonic()
    reclaiming.start()
    path = f"/api/v1/namespaces/{namespace}/pods/{node.name}"
    wait_for("the pod to be asked to go", lambda: _is_leaving(own_cluster, path), seconds=5)
    while time.monotonic() - started < notice_seconds - 1:
        assert node.is_on
        time.sleep(0.2)
    reclaiming.join()
    assert not node.is_on
    state = own_cluster.api.get(f"/api/v1/nodes/{node.name}")
    assert state["spec"]["unschedulable"]


def _is_leaving(cluster: Cluster, path: str) -> bool:
    pod = cluster.api.find(path)
    return pod is None or "deletionTimestamp" in pod["metadata"]


def test_an_eviction_heeds_the_budget(own_cluster: Cluster, namespace: str) -> None:
    api, node = own_cluster.api, own_cluster.nodes[0]
    _start(own_cluster, namespace, node, *SLEEP)
    selector = {"matchLabels": {"app": node.name}}
    budget = {"metadata": {"name": "all"}, "spec": {"minAvailable": 1, "selector": selector}}
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    api.create(budgets, budget)
    assert not faults.evict(api, namespace, node.name)
    api.delete(f"{budgets}/all")
    # The budget is counted for a moment after it is gone.
    wait_for("the eviction", lambda: faults.evict(api, namespace, node.name), seconds=20)
    path = f"/api/v1/namespaces/{namespace}/pods/{node.name}"
    wait_for("the pod to be gone", lambda: api.find(path) is None)


def test_a_full_disk_is_noticed_and_freed(own_cluster: Cluster, namespace: str) -> None:
    node = own_cluster.nodes[2]
    _start(own_cluster, namespace, node, *SLEEP)
    faults.fill_disk(node)
    with pytest.raises(OSError, match="No space left") as full:
        (node.disk / "more").write_bytes(bytes(8 << 20))
    assert full.value.errno == errno.ENOSPC
    with suppress(FileNotFoundError):
        (node.disk / "more").unlink()
    wait_for("the kubelet to notice", lambda: _pressure(own_cluster, node) == "True", seconds=60)
    wait_for(
        "the pod to be put out",
        lambda: pods.phase(own_cluster.api, namespace, node.name) == "Failed",
        seconds=60,
    )
    state = pods.state(own_cluster.api, namespace, node.name)
    assert state["status"]["reason"] == "Evicted"
    faults.free_disk(node)
    wait_for("the kubelet to notice", lambda: _pressure(own_cluster, node) == "False", seconds=90)


def test_slow_dns_answers_late(own_cluster: Cluster, namespace: str) -> None:
    assert min(_answer_seconds() for _ in range(3)) < 0.5
    faults.slow_dns(own_cluster.dns, 1.0)
    wait_for("a late answer", lambda: slow_dns.resolves(HOST, 53), seconds=20)
    assert _answer_seconds() > 1.0
    faults.quick_dns(own_cluster.dns)
    assert min(_answer_seconds() for _ in range(3)) < 0.5


def _answer_seconds() -> float:
    started = time.monotonic()
    assert slow_dns.resolves(HOST, 53)
    return time.monotonic() - started
