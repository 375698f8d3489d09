"""Thousands of simulated nodes in a real control plane: pods on them run in name only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from cluster_tool.api import Api, Object
from cluster_tool.binaries import binary
from cluster_tool.cluster import Cluster

STAGES = Path(__file__).parent / "kwok_stages.yaml"
LABEL = "headway-test/simulated"
ADDRESSES = "10.128.0.0/9"
"""Addresses of pods on simulated nodes; nothing listens there."""
CONNECTIONS = 8
"""5,000 nodes in 17 s; more are no faster on two cores."""
LEASE_SECONDS = 160
"""Renewed after a quarter of it, which must be sooner than the 50 s a node may be silent."""


@contextmanager
def simulated_nodes(
    cluster: Cluster, num_nodes: int, labels: dict[str, str] | None = None
) -> Iterator[list[str]]:
    """Their names; all are ready. They are gone afterwards."""
    try:
        yield simulate_nodes(cluster, num_nodes, labels)
    finally:
        cluster.api.delete("/api/v1/nodes", labelSelector=f"{LABEL}=true")
        cluster.processes.end("kwok")


def simulate_nodes(
    cluster: Cluster, num_nodes: int, labels: dict[str, str] | None = None
) -> list[str]:
    """The same, to go with the cluster: to delete thousands takes minutes."""
    names = [f"simulated-{number:05d}" for number in range(num_nodes)]
    cluster.processes.start(
        "kwok",
        [
            *(binary("kwok"), f"--kubeconfig={cluster.kubeconfig}", f"--config={STAGES}"),
            f"--manage-nodes-with-label-selector={LABEL}=true",
            f"--node-lease-duration-seconds={LEASE_SECONDS}",
            f"--cidr={ADDRESSES}",
        ],
    )
    api = Api(cluster.kubeconfig, connections=CONNECTIONS)
    try:
        with ThreadPoolExecutor(CONNECTIONS) as threads:
            list(threads.map(lambda name: _make(api, name, labels or {}), names))
        _wait_ready(api, num_nodes)
    finally:
        api.close()
    return names


def _make(api: Api, name: str, labels: dict[str, str]) -> None:
    room = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    node: Object = {
        "metadata": {
            "name": name,
            "labels": {LABEL: "true", "kubernetes.io/hostname": name, **labels},
        },
        "status": {"capacity": room, "allocatable": room},
    }
    api.create("/api/v1/nodes", node)


def _wait_ready(api: Api, num_nodes: int) -> None:
    deadline = time.monotonic() + 60 + num_nodes / 20
    while (ready := _num_ready(api)) < num_nodes:
        assert time.monotonic() < deadline, f"{ready} of {num_nodes} simulated nodes are ready"
        # Asked more often, the asking would be most of the load.
        time.sleep(1)


def _num_ready(api: Api) -> int:
    """From the server's memory: thousands of nodes are some megabytes."""
    return sum(
        condition["type"] == "Ready" and condition["status"] == "True"
        for node in api.items("/api/v1/nodes", labelSelector=f"{LABEL}=true", resourceVersion="0")
        for condition in node["status"].get("conditions", ())
    )
