"""Faults of a cluster; `Cluster.repair` undoes all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from cluster_tool import network
from cluster_tool.api import Api, ApiError, Object
from cluster_tool.control_plane import ControlPlane
from cluster_tool.dns import Dns
from cluster_tool.node import Node
from cluster_tool.readiness import is_ready, now
from support.waiting import wait_for

FILLER = "filler"
LEFT_BYTES = 1 << 20
READY_SECONDS = 90.0
PODS_PORT, KUBELET_PORT = 7461, 10250
EPHEMERAL_PORTS, SESSION_PORTS = "32768:60999", "7460"
"""Of collectives, and of the coordinator."""


def pull_plug(node: Node) -> None:
    """Every process of the node is dead when this returns, and nothing was told of it."""
    node.power_off()


def put_back(node: Node, api: Api) -> None:
    """The machine starts again with the disk it had."""
    since = now()
    node.power_on()
    node.join()
    wait_for(f"{node.name} to be back", lambda: is_ready(api, node.name, since), READY_SECONDS)


def cut_network(node: Node) -> None:
    """No packet gets to or from it; its processes keep running."""
    network.cut(node.number)


def mend_network(node: Node) -> None:
    network.mend(node.number)


def cut_api_from_pods() -> None:
    """The API server's packets to the HTTP port of Headway's pods are lost."""
    network.block(network.PODS, PODS_PORT)


def cut_api_from_kubelets() -> None:
    network.block(network.NODES, KUBELET_PORT)


def mend_api() -> None:
    """It reaches pods and kubelets."""
    network.unblock(network.PODS, PODS_PORT)
    network.unblock(network.NODES, KUBELET_PORT)


def cut_ports(node: Node, ports: str) -> None:
    """One direction: pods of other machines cannot open connections to these ports of its pods."""
    network.block_into(node.number, ports)


def mend_ports(node: Node) -> None:
    for ports in (EPHEMERAL_PORTS, SESSION_PORTS):
        network.unblock_into(node.number, ports)


def stop_dns(dns: Dns) -> None:
    dns.stop()


def start_dns(dns: Dns) -> None:
    dns.start_again()


def make_read_only(node: Node, folder: Path) -> None:
    """As a share that is exported so; for pods that start there from now on."""
    node.do("mount", "--bind", folder, folder)
    node.do("mount", "-o", "remount,ro,bind", folder)


def make_writable(node: Node, folder: Path) -> None:
    node.do("umount", folder)


def label(node: Node, api: Api, labels: Mapping[str, str | None]) -> None:
    api.patch(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": dict(labels)}})


def offer(node: Node, api: Api, devices: Mapping[str, str | None]) -> None:
    """As a device plugin would, whether the devices are there or not."""
    status = {"capacity": dict(devices), "allocatable": dict(devices)}
    api.patch(f"/api/v1/nodes/{node.name}/status", {"status": status})


def cordon(node: Node, api: Api) -> None:
    api.patch(f"/api/v1/nodes/{node.name}", {"spec": {"unschedulable": True}})


def uncordon(node: Node, api: Api) -> None:
    api.patch(f"/api/v1/nodes/{node.name}", {"spec": {"unschedulable": None}})


def evict(api: Api, namespace: str, pod: str) -> bool:
    """False if a disruption budget forbids it for now."""
    body: Object = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": namespace},
    }
    try:
        api.create(f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body)
    except ApiError as error:
        if error.status == 429:
            return False
        # 404: it ended by itself in the meantime.
        if error.status != 404:
            raise
    return True


def drain(node: Node, api: Api, seconds: float) -> None:
    """Cordons the node and evicts its pods; retries what a budget forbids. Returns when none is
    left, or after `seconds`."""
    deadline = time.monotonic() + seconds
    cordon(node, api)
    while time.monotonic() < deadline:
        left = [pod for pod in _pods(node, api) if not _has_ended(pod)]
        if not left:
            return
        for pod in left:
            if "deletionTimestamp" not in pod["metadata"]:
                evict(api, pod["metadata"]["namespace"], pod["metadata"]["name"])
        time.sleep(0.2)


def reclaim(node: Node, api: Api, notice_seconds: float) -> None:
    """As a spot machine is reclaimed: drained with a notice, then without power."""
    deadline = time.monotonic() + notice_seconds
    drain(node, api, notice_seconds)
    time.sleep(max(0.0, deadline - time.monotonic()))
    pull_plug(node)


def fill_disk(node: Node) -> None:
    """Pods' scratch folders and logs are on it. It is full at once; the kubelet sees it later."""
    free = os.statvfs(node.disk)
    with (node.disk / FILLER).open("wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, free.f_bavail * free.f_frsize - LEFT_BYTES)


def free_disk(node: Node) -> None:
    (node.disk / FILLER).unlink(missing_ok=True)


def stop_api(control_plane: ControlPlane) -> None:
    control_plane.stop_api()


def start_api(control_plane: ControlPlane, api: Api) -> None:
    control_plane.start_api()
    control_plane.wait_ready(api)
    control_plane.restart_controllers()


def slow_dns(dns: Dns, seconds: float) -> None:
    """Every answer comes that much later; for a second there is none at all."""
    dns.slow_down(seconds)


def quick_dns(dns: Dns) -> None:
    dns.speed_up()


def _pods(node: Node, api: Api) -> list[Object]:
    return api.items("/api/v1/pods", fieldSelector=f"spec.nodeName={node.name}")


def _has_ended(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")
