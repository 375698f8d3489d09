"""Kueue beside the test cluster: its own program, kinds and webhooks, with certificates of ours.

It looks for certificates at places of its own, so it has a root folder of its own."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import yaml

from cluster_tool import network
from cluster_tool.api import ApiError, Object
from cluster_tool.binaries import MODULES, binary, module_folder
from cluster_tool.certificates import Authority
from cluster_tool.cluster import Cluster
from support.waiting import wait_for

PROGRAM = "kueue"
MODULE, CHECKSUM = "sigs.k8s.io/kueue", "h1:7hzb38M4eKGzYW+CFv2s1L+swzzacUCHOCXxZmAV90I="
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
WEBHOOK_PORT = 19443
"""Not the usual one: somebody may use it on this machine."""
FLAVOR = "any"
PRIORITIES = {"low": 10, "high": 100}
EVERYWHERE = ("kube-system", "kueue-system")
"""Namespaces whose pods the shipped configuration leaves alone."""
ANSWER_SECONDS = 120.0


class Kueue:
    def __init__(self, cluster: Cluster) -> None:
        self._api = cluster.api

    def add_queue(self, namespace: str, name: str, cpu: str, memory: str) -> None:
        """A queue of the namespace, with a quota of its own. Whoever has a higher priority
        preempts."""
        quotas = [
            {"name": "cpu", "nominalQuota": cpu},
            {"name": "memory", "nominalQuota": memory},
        ]
        spec = {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [
                {
                    "coveredResources": ["cpu", "memory"],
                    "flavors": [{"name": FLAVOR, "resources": quotas}],
                }
            ],
        }
        self._api.create(f"{KUEUE}/clusterqueues", _made("ClusterQueue", namespace, spec=spec))
        local = _made("LocalQueue", name, spec={"clusterQueue": namespace})
        self._api.create(f"{KUEUE}/namespaces/{namespace}/localqueues", local)
        path = f"{KUEUE}/namespaces/{namespace}/localqueues/{name}"
        wait_for(f"queue {name}", lambda: _holds(self._api.get(path), "Active"))

    def workloads(self, namespace: str) -> list[Object]:
        return self._api.items(f"{KUEUE}/namespaces/{namespace}/workloads")


@contextmanager
def kueue(cluster: Cluster, *, manages_all: bool = False) -> Iterator[Kueue]:
    """Ready to admit. Afterwards nothing of it is left. `manages_all`: it suspends Jobs and pods
    without a queue, too."""
    api = cluster.api
    source = module_folder(MODULE, MODULES[PROGRAM][1], CHECKSUM) / "config" / "components"
    crds = _read(sorted((source / "crd" / "bases").glob("*.yaml")))
    root = cluster.folder / PROGRAM
    keys = Authority(root / "keys")
    hooks = [_reachable(one, keys) for one in _read([source / "webhook" / "manifests.yaml"])]
    try:
        for crd in crds:
            api.create(CRDS, crd)
        for crd in crds:
            wait_for(crd["metadata"]["name"], partial(_is_served, cluster, crd))
        _start(cluster, root, keys, manages_all)
        for hook in hooks:
            api.create(_hook_path(hook), hook)
        wait_for("Kueue", lambda: _has_flavor(cluster), ANSWER_SECONDS)
        for name, value in PRIORITIES.items():
            made = _made("WorkloadPriorityClass", name, value=value)
            api.create(f"{KUEUE}/workloadpriorityclasses", made)
        yield Kueue(cluster)
    finally:
        for hook in hooks:
            api.delete(f"{_hook_path(hook)}/{hook['metadata']['name']}")
        cluster.processes.end(PROGRAM)
        # Nobody is left to remove finalizers.
        for crd in crds:
            _delete_all(cluster, crd["spec"]["names"]["plural"])
            path = f"{CRDS}/{crd['metadata']['name']}"
            api.delete(path)
            wait_for(f"{path} to go", partial(_is_gone, cluster, path))
        shutil.rmtree(root)


def _start(cluster: Cluster, root: Path, keys: Authority, manages_all: bool) -> None:
    keys.issue("webhook", PROGRAM, hosts=[network.HOST])
    for place in ("webhook", "etc/kueue/metrics/certs"):
        (root / place).mkdir(parents=True)
        for end in ("crt", "key"):
            shutil.copy(keys.folder / f"webhook.{end}", root / place / f"tls.{end}")
    (root / "tmp").mkdir()
    shutil.copy(binary(PROGRAM), root / PROGRAM)
    shutil.copy(cluster.kubeconfig, root / "kubeconfig")
    (root / "config.yaml").write_text(yaml.safe_dump(_configuration(manages_all)))
    command = [
        f"/{PROGRAM}",
        "--config=/config.yaml",
        "--kubeconfig=/kubeconfig",
        "--zap-log-level=2",
    ]
    cluster.processes.start(PROGRAM, ["chroot", root, *command])


def _configuration(manages_all: bool) -> Object:
    """As it is shipped, but for addresses and certificates, frameworks that are not here, and the
    feature by which a Job in a queue changes its size."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": "0"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": network.HOST, "port": WEBHOOK_PORT, "certDir": "/webhook"},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": 50, "burst": 100},
        "manageJobsWithoutQueueName": manages_all,
        "integrations": {"frameworks": ["batch/job", "pod", "deployment", "statefulset"]},
        "featureGates": {"ElasticJobsViaWorkloadSlices": True, "VisibilityOnDemand": False},
    }


def _reachable(hooks: Object, keys: Authority) -> Object:
    """The same webhooks, of a program on this machine."""
    trusted = base64.b64encode(keys.certificate.read_bytes()).decode()
    for hook in hooks["webhooks"]:
        path = hook["clientConfig"]["service"]["path"]
        url = f"https://{network.HOST}:{WEBHOOK_PORT}{path}"
        hook["clientConfig"] = {"url": url, "caBundle": trusted}
        name = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [*EVERYWHERE]}
        hook["namespaceSelector"] = {"matchExpressions": [name]}
    return {**hooks, "metadata": {"name": f"{PROGRAM}-{hooks['metadata']['name']}"}}


def _hook_path(hook: Object) -> str:
    return f"{WEBHOOKS}/{hook['kind'].lower()}s"


def _read(paths: Sequence[Path]) -> list[Object]:
    return [one for path in paths for one in yaml.safe_load_all(path.read_text()) if one]


def _has_flavor(cluster: Cluster) -> bool:
    """Whether one could be made: by a webhook of Kueue."""
    assert cluster.processes.pid(PROGRAM), f"it has ended: {cluster.processes.log(PROGRAM)}"
    try:
        cluster.api.create(f"{KUEUE}/resourceflavors", _made("ResourceFlavor", FLAVOR, spec={}))
    except ApiError as error:
        if "failed calling webhook" in str(error):
            return False
        raise
    return True


def _delete_all(cluster: Cluster, plural: str) -> None:
    for one in cluster.api.items(f"{KUEUE}/{plural}"):
        made = one["metadata"]
        inside = f"/namespaces/{made['namespace']}" if "namespace" in made else ""
        path = f"{KUEUE}{inside}/{plural}/{made['name']}"
        if made.get("finalizers"):
            cluster.api.patch(path, {"metadata": {"finalizers": None}})
        cluster.api.delete(path)


def _is_gone(cluster: Cluster, path: str) -> bool:
    return cluster.api.find(path) is None


def _made(kind: str, name: str, **content: object) -> Object:
    made = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}}
    return {**made, **content}


def _is_served(cluster: Cluster, crd: Object) -> bool:
    return _holds(cluster.api.get(f"{CRDS}/{crd['metadata']['name']}"), "Established")


def _holds(found: Object, condition: str) -> bool:
    conditions = found.get("status", {}).get("conditions") or ()
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)
