"""What the API server's answers say about a cluster and a namespace. Pure.

Each answer may be missing: users often may see their own namespace only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headway.kube.names import COMPONENT, MANAGED_BY, Object
from headway.kube.node_facts import (
    CpuRoom,
    MachineGroup,
    cpu_room_of,
    has_label,
    labels_of,
    machine_groups,
    pool_machines,
    quantity,
    requests_by_node,
    takes_pods,
    unsupported_on,
    without_plugin_on,
)
from headway.kube.reviews import user_name, version_finding
from headway.spec.pod_config import ARCHITECTURE

Answers = Mapping[str, Object | None]
"""By what was asked for (`cluster_look.ASKED`); None: it may not be seen, or is not there."""
ENFORCED = "pod-security.kubernetes.io/enforce"
SHARED_MODE = "ReadWriteMany"
SPOT_LABELS = (
    ("karpenter.sh/capacity-type", "spot"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("cloud.google.com/gke-spot", "true"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
)
SHARED_PROVISIONERS = (
    "efs.csi.aws.com",
    "fsx.csi.aws.com",
    "filestore.csi.storage.gke.io",
    "file.csi.azure.com",
    "nfs.csi.k8s.io",
    "cephfs.csi.ceph.com",
    "cluster.local/nfs-subdir-external-provisioner",
    "beegfs.csi.netapp.com",
    "weka",
    "csi.vastdata.com",
)
"""Ends or parts of provisioners whose volumes many machines can write to. Others may as well: a
class does not say so itself."""


@dataclass(frozen=True)
class Claim:
    name: str
    modes: tuple[str, ...]
    storage_class: str
    size: str
    is_bound: bool

    @property
    def is_shared(self) -> bool:
        return SHARED_MODE in self.modes


@dataclass(frozen=True)
class SeenImage:
    reference: str
    """As the pod names it."""
    by_digest: str | None
    """As the machine pulled it."""
    component: str
    """Of Headway that ran it: `worker`, `coordinator`; empty: a pod of somebody else's."""


@dataclass(frozen=True)
class ClusterFacts:
    version: str | None
    too_old: str | None
    """Why it is, if runs do not work with that version."""
    user: str | None
    rights: Mapping[str, bool]
    level: str | None
    """Pod security level that the namespace enforces; None: none, or it may not be seen."""
    num_nodes: int | None
    """None: nodes may not be seen."""
    machines: tuple[MachineGroup, ...]
    """With accelerators, the most of them first."""
    unsupported: tuple[str, ...]
    """Accelerators that Headway does not run on."""
    without_plugin: tuple[str, ...]
    """Types of machines with a label of a GPU and no device for pods."""
    pool_machines: tuple[str, ...]
    """Machines with accelerators that Karpenter can make."""
    cpu_room: CpuRoom | None
    limits: Mapping[str, tuple[float, str]]
    """The most cpu and memory that a pod may have by limit range or quota, and which of them."""
    claims: tuple[Claim, ...]
    shared_classes: tuple[str, ...]
    """Storage classes whose volumes many machines can write to."""
    num_classes: int | None
    queues: tuple[str, ...]
    """Kueue's LocalQueues that are active."""
    spot: tuple[str, str] | None
    architectures: frozenset[str]
    images: tuple[SeenImage, ...]
    accounts: frozenset[str]
    pull_secrets: tuple[str, ...]
    """Of the namespace's default account."""

    def group(self, name: str) -> MachineGroup | None:
        return next((one for one in self.machines if one.name == name), None)


def cluster_facts(answers: Answers) -> ClusterFacts:
    nodes = [node for node in _items(answers, "nodes") if takes_pods(node)]
    pods = _items(answers, "pods") if answers.get("pods") is not None else None
    used = requests_by_node(pods) if pods is not None else None
    groups = sorted(
        machine_groups(nodes, used),
        key=lambda one: (-one.num_nodes * one.accelerators.count, one.name),
    )
    too_old = version_finding(answers.get("version") or {})
    return ClusterFacts(
        version=(answers.get("version") or {}).get("gitVersion"),
        too_old=too_old.words if too_old is not None else None,
        user=user_name(answers.get("user") or {}),
        rights=dict(answers.get("rights") or {}),
        level=(_at(answers.get("namespace"), "metadata", "labels") or {}).get(ENFORCED),
        num_nodes=len(_items(answers, "nodes")) if answers.get("nodes") is not None else None,
        machines=tuple(groups),
        unsupported=tuple(sorted(unsupported_on(nodes))),
        without_plugin=tuple(sorted(without_plugin_on(nodes))),
        pool_machines=tuple(pool_machines(_items(answers, "node_pools"))),
        cpu_room=cpu_room_of(nodes, used),
        limits=_limits(answers),
        claims=tuple(_claims(_items(answers, "claims"))),
        shared_classes=tuple(_shared_classes(_items(answers, "classes"))),
        num_classes=len(_items(answers, "classes")) if answers.get("classes") is not None else None,
        queues=tuple(_queues(_items(answers, "queues"))),
        spot=next((one for one in SPOT_LABELS if any(has_label(n, one) for n in nodes)), None),
        architectures=frozenset(
            filter(None, (labels_of(node).get(ARCHITECTURE) for node in nodes))
        ),
        images=tuple(_images(answers)),
        accounts=frozenset(one["metadata"]["name"] for one in _items(answers, "accounts")),
        pull_secrets=tuple(_pull_secrets(_items(answers, "accounts"))),
    )


def _items(answers: Answers, name: str) -> list[Object]:
    return list((answers.get(name) or {}).get("items") or ())


def _at(found: Object | None, *path: str) -> Any:
    value: Any = found
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _images(answers: Answers) -> Iterator[SeenImage]:
    """Of the namespace's own pods, and of what Headway made them from; Headway's first."""
    found: dict[tuple[str, str], SeenImage] = {}
    names = ("jobs", "replica_sets", "own_pods")
    for one in [one for name in names for one in _items(answers, name)]:
        labels = one["metadata"].get("labels") or {}
        component = labels.get(COMPONENT, "") if labels.get(MANAGED_BY) == "headway" else ""
        pod = one["spec"].get("template", one)
        ids = {
            status["name"]: status.get("imageID") or ""
            for status in one.get("status", {}).get("containerStatuses") or ()
        }
        for container in pod.get("spec", {}).get("containers") or ():
            reference = container["image"]
            pulled = ids.get(container["name"], "").removeprefix("docker-pullable://")
            by_digest = next((name for name in (reference, pulled) if "@sha256:" in name), None)
            known = found.get((reference, component))
            if known is None or (known.by_digest is None and by_digest is not None):
                found[reference, component] = SeenImage(reference, by_digest, component)
    yield from sorted(found.values(), key=lambda image: (image.component == "", image.reference))


# The namespace


def _limits(answers: Answers) -> dict[str, tuple[float, str]]:
    found: dict[str, tuple[float, str]] = {}

    def note(resource: str, most: float, whose: str) -> None:
        if resource not in found or most < found[resource][0]:
            found[resource] = (most, whose)

    for one in _items(answers, "limit_ranges"):
        for limit in one["spec"].get("limits") or ():
            for resource, text in (limit.get("max") or {}).items():
                if limit["type"] in ("Container", "Pod") and resource in ("cpu", "memory"):
                    note(resource, quantity(text), f"limit range {_name(one)}")
    for one in _items(answers, "quotas"):
        status = one.get("status") or {}
        for key, text in (status.get("hard") or {}).items():
            resource = key.removeprefix("requests.").removeprefix("limits.")
            if resource in ("cpu", "memory"):
                left = quantity(text) - quantity((status.get("used") or {}).get(key))
                note(resource, left, f"quota {_name(one)}")
    return found


def _name(one: Object) -> str:
    return str(one["metadata"]["name"])


def _claims(items: Iterable[Object]) -> Iterator[Claim]:
    for one in items:
        spec, status = one["spec"], one.get("status") or {}
        yield Claim(
            name=_name(one),
            modes=tuple(spec.get("accessModes") or ()),
            storage_class=spec.get("storageClassName") or "",
            size=(status.get("capacity") or {}).get("storage", ""),
            is_bound=status.get("phase") == "Bound",
        )


def _shared_classes(items: Iterable[Object]) -> Iterator[str]:
    for one in items:
        if any(part in one["provisioner"] for part in SHARED_PROVISIONERS):
            yield _name(one)


def _queues(items: Iterable[Object]) -> Iterator[str]:
    for one in items:
        conditions = (one.get("status") or {}).get("conditions") or ()
        if all(c["status"] == "True" for c in conditions if c["type"] == "Active"):
            yield _name(one)


def _pull_secrets(accounts: Iterable[Object]) -> Iterator[str]:
    for one in accounts:
        if _name(one) == "default":
            for secret in one.get("imagePullSecrets") or ():
                yield secret["name"]
