"""The cluster as a whole: brought up, found again, repaired, taken down."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from cluster_tool import cgroups, faults, network, volumes
from cluster_tool.api import Api
from cluster_tool.binaries import CACHE, install_packages
from cluster_tool.commands import need_root
from cluster_tool.control_plane import ControlPlane
from cluster_tool.dns import Dns
from cluster_tool.images import Image, headway_image, pause_image
from cluster_tool.node import MOUNT_POINTS, Node
from cluster_tool.processes import Processes
from cluster_tool.readiness import is_ready
from cluster_tool.volumes import PodParts
from support.waiting import wait_for

FOLDER = CACHE / "cluster"
LOGS = "log"
"""Stay when all else in the folder is taken away."""
RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}
PATIENCE_SECONDS = 120.0


class GivenCluster:
    """Somebody's cluster: it has namespaces, but nothing in it can be broken on purpose."""

    def __init__(self, kubeconfig: Path, image: str | None) -> None:
        self.kubeconfig = kubeconfig
        self.image = image
        """Of Headway's pods, by digest."""
        self.api = Api(kubeconfig)

    @contextmanager
    def namespace(self, name: str) -> Iterator[str]:
        """With restricted pod security, enforced. Afterwards it goes with all that is in it, by
        and by: Kubernetes takes five seconds before it begins."""
        path = f"/api/v1/namespaces/{name}"
        labelled = {"metadata": {"name": name, "labels": RESTRICTED}}
        self.api.create("/api/v1/namespaces", labelled)
        account = f"{path}/serviceaccounts/default"
        wait_for(f"the account of {name}", lambda: self.api.find(account))
        try:
            yield name
        finally:
            # Without grace: nothing in there has anything left to say.
            self.api.delete(f"{path}/pods", gracePeriodSeconds="0")
            self.api.delete(path)


class Cluster(GivenCluster):
    """Ours, on this machine. All it has made is in its folder or begins with `headway-kube`."""

    def __init__(self, folder: Path, num_nodes: int, image: str) -> None:
        super().__init__(folder / "admin.kubeconfig", image)
        self.folder = folder
        self.processes = Processes(folder)
        self.control_plane = ControlPlane(folder, self.processes)
        self.dns = Dns(folder, self.processes)
        self.nodes = _nodes(folder, num_nodes, self.processes)

    @staticmethod
    def given(kubeconfig: Path) -> GivenCluster:
        return GivenCluster(kubeconfig, os.environ.get("HEADWAY_TEST_IMAGE"))

    @classmethod
    def up(cls, folder: Path = FOLDER, nodes: int = 3) -> Cluster:
        """Ready for use. With 0 nodes it is a control plane alone, for simulated ones."""
        need_root()
        folder = folder.resolve()
        assert 0 <= nodes <= network.MAX_NODES, (
            f"a test cluster has up to {network.MAX_NODES} nodes"
        )
        assert not folder.is_relative_to("/run"), "nodes have a /run of their own"
        install_packages()
        images = [pause_image(), headway_image()]
        folder.mkdir(parents=True, exist_ok=True)
        others = {path.name for path in folder.iterdir()} - {LOGS}
        assert not others, f"{folder} is not empty: is there a cluster already, or something else?"
        network.make_bridge(folder)
        shutil.rmtree(folder / LOGS, ignore_errors=True)
        made = [str(path) for path in MOUNT_POINTS if not path.exists()]
        facts = {"nodes": nodes, "image": images[1].reference, "made": made}
        (folder / "cluster.json").write_text(json.dumps(facts))
        try:
            return cls._started(folder, nodes, images)
        except BaseException:
            take_down(folder)
            raise

    @classmethod
    def found(cls, folder: Path = FOLDER) -> Cluster | None:
        """The one that was brought up in that folder."""
        facts = _facts(folder)
        if facts is None or not (folder / "admin.kubeconfig").exists():
            return None
        return cls(folder, facts["nodes"], facts["image"])

    def down(self) -> None:
        self.api.close()
        take_down(self.folder)

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def wait_ready(self, seconds: float = PATIENCE_SECONDS) -> None:
        self.control_plane.wait_ready(self.api, seconds)
        for node in self.nodes:
            wait_for(f"{node.name} to be ready", partial(is_ready, self.api, node.name), seconds)
        self.dns.wait_ready()

    def repair(self) -> None:
        """Undoes whatever fault is left; does next to nothing if there is none."""
        faults.mend_api()
        if not self.control_plane.api_runs:
            faults.start_api(self.control_plane, self.api)
        if self.dns.is_slow:
            faults.quick_dns(self.dns)
        elif self.dns.is_stopped:
            faults.start_dns(self.dns)
        for node in self.nodes:
            faults.uncordon(node, self.api)
            faults.mend_ports(node)
            if node.is_whole:
                faults.mend_network(node)
                faults.free_disk(node)
            else:
                node.power_off()
                faults.put_back(node, self.api)
        self.wait_ready()

    def lend(self, namespace: str) -> PodParts:
        """What pods of that namespace need to run Headway from this repository."""
        return volumes.lend(self.api, namespace, self._shared(namespace))

    @contextmanager
    def namespace(self, name: str) -> Iterator[str]:
        """Its pods' processes have ended when it is left: they would slow the next test down."""
        uids: list[str] = []
        with super().namespace(name):
            try:
                yield name
            finally:
                there = self.api.items(f"/api/v1/namespaces/{name}/pods")
                uids += [pod["metadata"]["uid"] for pod in there]
        for uid in uids:
            wait_for(f"pod {uid} of {name} to end", partial(self._has_ended, uid))
        volumes.take_back(self.api, name)
        shutil.rmtree(self._shared(name), ignore_errors=True)

    def _has_ended(self, pod_uid: str) -> bool:
        return not any(node.pod_pids(pod_uid) for node in self.nodes)

    def _shared(self, namespace: str) -> Path:
        return self.folder / "shared" / namespace

    @classmethod
    def _started(cls, folder: Path, num_nodes: int, images: list[Image]) -> Cluster:
        for path in MOUNT_POINTS:
            path.mkdir(parents=True, exist_ok=True)
        processes = Processes(folder)
        control_plane = ControlPlane(folder, processes)
        nodes = _nodes(folder, num_nodes, processes)
        control_plane.introduce({node.name: node.address for node in nodes})
        control_plane.start()
        cluster = cls(folder, num_nodes, images[1].reference)

        def boot(node: Node) -> None:
            node.power_on()
            for image in images:
                node.load(image)

        with ThreadPoolExecutor(max(1, num_nodes)) as threads:
            booting = threads.map(boot, nodes)
            control_plane.wait_ready(cluster.api)
            control_plane.start_controllers()
            cluster.dns.start()
            list(booting)
        for node in nodes:
            node.join()
        cluster.wait_ready()
        return cluster


@contextmanager
def sole_use() -> Iterator[None]:
    """For one test session at a time: each would undo the other's faults."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "cluster.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AssertionError("another test session has the test cluster") from None
        yield


def take_down(folder: Path = FOLDER) -> None:
    """Everything that was made for it, however far it got; its logs stay."""
    facts = _facts(folder)
    if facts is None:
        return
    processes = Processes(folder)
    for node in _nodes(folder, facts["nodes"], processes):
        node.power_off()
    processes.end_all()
    faults.mend_api()
    network.remove_bridge()
    for path in facts["made"]:
        # Somebody else may use it by now.
        with suppress(OSError):
            Path(path).rmdir()
    for path in folder.iterdir():
        if path.is_dir() and path.name != LOGS:
            shutil.rmtree(path)
    # The facts go last: until then a cut-off `down` can be done again.
    files = sorted(folder.glob("*"), key=lambda path: path.name == "cluster.json")
    for path in files:
        if path.is_file():
            path.unlink()


def traces(folder: Path = FOLDER) -> list[str]:
    """What of a cluster is on this machine."""
    processes = Processes(folder)
    running = [f"process {name}" for name in processes.names() if processes.pid(name)]
    places = (Path(line.split()[1]) for line in Path("/proc/mounts").read_text().splitlines())
    mounts = [f"mount {place}" for place in places if place.is_relative_to(folder)]
    return [*running, *network.traces(), *mounts, *cgroups.traces(network.BRIDGE)]


def _nodes(folder: Path, num_nodes: int, processes: Processes) -> tuple[Node, ...]:
    numbers = range(1, num_nodes + 1)
    return tuple(Node(number, num_nodes, folder, processes) for number in numbers)


def _facts(folder: Path) -> dict[str, Any] | None:
    try:
        facts: dict[str, Any] = json.loads((folder / "cluster.json").read_text())
    except FileNotFoundError:
        return None
    return facts
