"""Karpenter beside the test cluster, with its own simulated provider: for pods that no machine has
room for it makes nodes, which nobody runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import yaml

from cluster_tool.api import ApiError, Object
from cluster_tool.binaries import MODULES, binary, module_folder
from cluster_tool.cluster import Cluster
from support.waiting import wait_for

PROGRAM = "karpenter-kwok"
MODULE = "sigs.k8s.io/karpenter"
CRD_FOLDERS = ("pkg/apis/crds", "kwok/apis/crds")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POOLS = "/apis/karpenter.sh/v1/nodepools"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
POOL = "karpenter"
OF_POOL = f"karpenter.sh/nodepool={POOL}"
ANSWER_SECONDS = 60.0


class Karpenter:
    """Its view of a namespace's pods."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def claims(self) -> list[Object]:
        """Machines that it wants."""
        return self._cluster.api.items(CLAIMS)

    def provisioned(self, namespace: str) -> dict[str, str]:
        """The machine that each pod is to have, by the pod's name."""
        return self._said(namespace, "Nominated")

    def refused(self, namespace: str) -> dict[str, str]:
        """Why it makes no machine for a pod, by the pod's name."""
        return self._said(namespace, "FailedScheduling")

    def _said(self, namespace: str, reason: str) -> dict[str, str]:
        """By events of its own: the scheduler uses the same reasons."""
        events = self._cluster.api.items(
            f"/api/v1/namespaces/{namespace}/events", fieldSelector=f"reason={reason}"
        )
        return {
            event["involvedObject"]["name"]: event["message"]
            for event in events
            if event["source"].get("component") == "karpenter"
        }


@contextmanager
def karpenter(cluster: Cluster) -> Iterator[Karpenter]:
    """Ready to provision. Afterwards nothing of it is left."""
    api = cluster.api
    folder = module_folder(MODULE, MODULES[PROGRAM][1])
    crds = [crd for part in CRD_FOLDERS for crd in _read(folder / part)]
    try:
        for crd in crds:
            api.create(CRDS, crd)
        for crd in crds:
            wait_for(crd["metadata"]["name"], partial(_is_served, cluster, crd))
        cluster.processes.start(PROGRAM, _command(cluster))
        api.create(CLASSES, _class())
        api.create(POOLS, _pool())
        wait_for("Karpenter", lambda: _is_ready(cluster), ANSWER_SECONDS)
        yield Karpenter(cluster)
    finally:
        cluster.processes.end(PROGRAM)
        # Nobody is left to remove the finalizers of what it has made.
        for kind in (CLAIMS, "/api/v1/nodes"):
            for one in _made(cluster, kind):
                path = f"{kind}/{one['metadata']['name']}"
                api.patch(path, {"metadata": {"finalizers": None}})
                api.delete(path)
        paths = [f"{CRDS}/{crd['metadata']['name']}" for crd in crds]
        for path in paths:
            api.delete(path)
        wait_for("its kinds to be gone", lambda: not any(api.find(path) for path in paths))


def _made(cluster: Cluster, kind: str) -> list[Object]:
    try:
        return cluster.api.items(kind, labelSelector=OF_POOL)
    except ApiError as error:
        if error.status != 404:  # of a kind that was not made yet
            raise
        return []


def _command(cluster: Cluster) -> list[str | Path]:
    return [
        *("env", f"KUBECONFIG={cluster.kubeconfig}", "SYSTEM_NAMESPACE=kube-system"),
        *(binary(PROGRAM), "--disable-leader-election", "--log-level=debug"),
        # Any port: nobody asks there.
        *("--metrics-port=0", "--health-probe-port=0"),
    ]


def _read(folder: Path) -> list[Object]:
    return [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]


def _is_served(cluster: Cluster, crd: Object) -> bool:
    found = cluster.api.get(f"{CRDS}/{crd['metadata']['name']}")
    return _holds(found, "Established")


def _is_ready(cluster: Cluster) -> bool:
    assert cluster.processes.pid(PROGRAM), f"it has ended: {cluster.processes.log(PROGRAM)}"
    return _holds(cluster.api.get(f"{POOLS}/{POOL}"), "Ready")


def _holds(found: Object, condition: str) -> bool:
    conditions = found.get("status", {}).get("conditions") or ()
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


def _class() -> Object:
    return {
        "apiVersion": "karpenter.kwok.sh/v1alpha1",
        "kind": "KWOKNodeClass",
        "metadata": {"name": POOL},
    }


def _pool() -> Object:
    """Of machines of any size. It takes none back by itself."""
    kinds = {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "karpenter.sh/capacity-type": "on-demand",
    }
    requirements = [
        {"key": key, "operator": "In", "values": [value]} for key, value in kinds.items()
    ]
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": POOL}
    template = {"spec": {"requirements": requirements, "nodeClassRef": reference}}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": POOL},
        "spec": {
            "template": template,
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"},
        },
    }
