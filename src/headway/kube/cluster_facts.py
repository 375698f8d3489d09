"""What the API server's answers say about a cluster and a namespace. Pure.

Each answer may be missing: users often may see their own namespace only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from headway.kube.device_labels import AWS_PREFIXES, BOARDS, GKE, PRODUCT
from headway.kube.names import COMPONENT, MANAGED_BY, Object
from headway.kube.reviews import amount, user_name, version_finding
from headway.plan.machines import Machine, find_machine, machine_on_premises
from headway.plan.unsupported_accelerators import family_of_resource
from headway.spec.pod_config import ARCHITECTURE
from headway.spec.quantities import Accelerators

Answers = Mapping[str, Object | None]
"""By what was asked for (`cluster_look.ASKED`); None: it may not be seen, or is not there."""
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
GPU = "nvidia.com/gpu"
RDMA = "rdma/"
ENFORCED = "pod-security.kubernetes.io/enforce"
SHARED_MODE = "ReadWriteMany"
UNKNOWN_KIND = "gpu"
SPOT_LABELS = (
    ("karpenter.sh/capacity-type", "spot"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("cloud.google.com/gke-spot", "true"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
)
PASSING_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "ToBeDeleted")
"""Beginnings of taints that say how a machine is at the moment, not what it is for."""
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
class MachineGroup:
    """Machines of one type that are ready and take pods."""

    name: str
    """Of the table of machines, else the label of its type, else what its nodes have."""
    machine: Machine | None
    """In the table."""
    accelerators: Accelerators
    """Of each; the kind is `gpu` if nothing says which."""
    type_label: str
    """Value of the label of its type; empty: it has none."""
    is_labelled: bool
    """Whether all of them have a label of the accelerator that pods are placed by."""
    num_nodes: int
    num_free: int | None
    """Accelerators that no pod has; None: pods of others may not be seen."""
    cores: float
    """The least that one of them has for pods."""
    memory_bytes: int
    fabric: Mapping[str, int]
    """RDMA resources that all of them have."""
    taints: tuple[tuple[str, str, str], ...]
    """Key, value and effect of those that all of them have."""
    architectures: frozenset[str]


@dataclass(frozen=True)
class CpuRoom:
    """What at least half of the machines without accelerators have free."""

    cores: float
    memory_bytes: int
    num_nodes: int
    is_free: bool
    """Else it is what they have: pods of others may not be seen."""


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
    nodes = [node for node in _items(answers, "nodes") if _takes_pods(node)]
    pods = _items(answers, "pods") if answers.get("pods") is not None else None
    used = _used(pods) if pods is not None else None
    groups = sorted(
        _groups(nodes, used), key=lambda one: (-one.num_nodes * one.accelerators.count, one.name)
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
        unsupported=tuple(sorted(_unsupported(nodes))),
        without_plugin=tuple(sorted(_without_plugin(nodes))),
        cpu_room=_cpu_room(nodes, used),
        limits=_limits(answers),
        claims=tuple(_claims(_items(answers, "claims"))),
        shared_classes=tuple(_shared_classes(_items(answers, "classes"))),
        num_classes=len(_items(answers, "classes")) if answers.get("classes") is not None else None,
        queues=tuple(_queues(_items(answers, "queues"))),
        spot=next((one for one in SPOT_LABELS if any(_has_label(n, one) for n in nodes)), None),
        architectures=frozenset(filter(None, (_labels(node).get(ARCHITECTURE) for node in nodes))),
        images=tuple(_images(answers)),
        accounts=frozenset(one["metadata"]["name"] for one in _items(answers, "accounts")),
        pull_secrets=tuple(_pull_secrets(_items(answers, "accounts"))),
    )


def _quantity(text: str | None) -> float:
    return float(amount(text or "0"))


def _items(answers: Answers, name: str) -> list[Object]:
    return list((answers.get(name) or {}).get("items") or ())


def _at(found: Object | None, *path: str) -> Any:
    value: Any = found
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


# Nodes


def _labels(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _has_label(node: Object, label: tuple[str, str]) -> bool:
    return _labels(node).get(label[0]) == label[1]


def _takes_pods(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions") or ()
    is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return is_ready and not node.get("spec", {}).get("unschedulable")


def _taints(node: Object) -> set[tuple[str, str, str]]:
    return {
        (one["key"], one.get("value") or "", one["effect"])
        for one in node.get("spec", {}).get("taints") or ()
        if one["effect"] != "PreferNoSchedule" and not one["key"].startswith(PASSING_TAINTS)
    }


def _allocatable(node: Object) -> Mapping[str, str]:
    return node.get("status", {}).get("allocatable") or {}


def _num_gpus(node: Object) -> int:
    return int(_quantity(_allocatable(node).get(GPU)))


def _device_of(node: Object) -> str | None:
    """Else by the machine's type."""
    machine = find_machine(_labels(node).get(INSTANCE_TYPE, ""))
    return _labelled_device(node) or (machine.device if machine is not None else None)


def _labelled_device(node: Object) -> str | None:
    """By the labels of GPU feature discovery and of the clouds."""
    labels = _labels(node)
    for name, board in BOARDS.items():
        if labels.get(PRODUCT) in board.products or labels.get(GKE) in board.gke:
            return name
        for prefix in AWS_PREFIXES:
            memory = labels.get(f"{prefix}/instance-gpu-memory")
            is_memory = board.aws_memory_mib is None or memory == str(board.aws_memory_mib)
            is_name = labels.get(f"{prefix}/instance-gpu-name") == board.aws_name
            if board.aws_name is not None and is_name and is_memory:
                return name
    return None


def _groups(nodes: Sequence[Object], used: Mapping[str, _Used] | None) -> Iterator[MachineGroup]:
    by_name: dict[tuple[str, str, int], list[Object]] = {}
    for node in nodes:
        if _num_gpus(node):
            kind, number = _device_of(node) or UNKNOWN_KIND, _num_gpus(node)
            by_name.setdefault((_type_of(node, kind, number), kind, number), []).append(node)
    for (name, kind, number), members in by_name.items():
        free = None
        if used is not None:
            taken = (used.get(node["metadata"]["name"], _Used()).gpus for node in members)
            free = number * len(members) - sum(taken)
        yield MachineGroup(
            name=name,
            machine=find_machine(name),
            accelerators=Accelerators(kind, number),
            type_label=_labels(members[0]).get(INSTANCE_TYPE, ""),
            is_labelled=all(_labelled_device(node) is not None for node in members),
            num_nodes=len(members),
            num_free=free,
            cores=min(_cores(node) for node in members),
            memory_bytes=min(_memory(node) for node in members),
            fabric=_common_fabric(members),
            taints=tuple(sorted(set.intersection(*map(_taints, members)))),
            architectures=frozenset(_labels(node).get(ARCHITECTURE, "") for node in members) - {""},
        )


def _type_of(node: Object, kind: str, number: int) -> str:
    label = _labels(node).get(INSTANCE_TYPE, "")
    on_premises = machine_on_premises(kind, number)
    if find_machine(label) is None and on_premises is not None:
        return on_premises.name
    return label or f"{kind}:{number}"


def _cores(node: Object) -> float:
    return _quantity(_allocatable(node).get("cpu"))


def _memory(node: Object) -> int:
    return int(_quantity(_allocatable(node).get("memory")))


def _common_fabric(nodes: Sequence[Object]) -> dict[str, int]:
    first, *others = nodes
    return {
        name: int(_quantity(text))
        for name, text in _allocatable(first).items()
        if name.startswith(RDMA)
        and _quantity(text) > 0
        and all(_allocatable(node).get(name) == text for node in others)
    }


def _unsupported(nodes: Sequence[Object]) -> set[str]:
    families = (family_of_resource(name) for node in nodes for name in _allocatable(node))
    return {family.name for family in families if family is not None}


def _without_plugin(nodes: Sequence[Object]) -> set[str]:
    return {
        _labels(node).get(INSTANCE_TYPE, node["metadata"]["name"])
        for node in nodes
        if _device_of(node) is not None and not _num_gpus(node)
    }


def _cpu_room(nodes: Sequence[Object], used: Mapping[str, _Used] | None) -> CpuRoom | None:
    """Of machines that take any pod. Half of them have at least that much."""
    plain = [n for n in nodes if not _num_gpus(n) and _device_of(n) is None and not _taints(n)]
    if not plain:
        return None
    taken = [(used or {}).get(node["metadata"]["name"], _Used()) for node in plain]
    return CpuRoom(
        cores=median_low(_cores(n) - u.cores for n, u in zip(plain, taken, strict=True)),
        memory_bytes=median_low(
            _memory(n) - u.memory_bytes for n, u in zip(plain, taken, strict=True)
        ),
        num_nodes=len(plain),
        is_free=used is not None,
    )


# Pods


@dataclass(frozen=True)
class _Used:
    """What the pods of a machine request."""

    cores: float = 0
    memory_bytes: int = 0
    gpus: int = 0


def _used(pods: Iterable[Object]) -> dict[str, _Used]:
    found: dict[str, _Used] = {}
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName")
        if node is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            continue
        so_far, more = found.get(node, _Used()), _requests(pod["spec"])
        found[node] = _Used(
            so_far.cores + more.cores,
            so_far.memory_bytes + more.memory_bytes,
            so_far.gpus + more.gpus,
        )
    return found


def _requests(spec: Object) -> _Used:
    """Of its containers and sidecars together, or of its largest init container."""
    init = spec.get("initContainers") or []
    sidecars = [one for one in init if one.get("restartPolicy") == "Always"]
    others = [one for one in init if one.get("restartPolicy") != "Always"]
    lasting = [_request(one) for one in [*spec.get("containers", ()), *sidecars]]
    first = [_request(one) for one in others]
    return _Used(
        max([sum(one.cores for one in lasting), *(one.cores for one in first)]),
        max([sum(one.memory_bytes for one in lasting), *(one.memory_bytes for one in first)]),
        max([sum(one.gpus for one in lasting), *(one.gpus for one in first)]),
    )


def _request(container: Object) -> _Used:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return _Used(
        _quantity(asked.get("cpu")),
        int(_quantity(asked.get("memory"))),
        int(_quantity(asked.get(GPU))),
    )


def _images(answers: Answers) -> Iterator[SeenImage]:
    """Of the namespace's own pods and Jobs, Headway's first, each once."""
    found: dict[tuple[str, str], SeenImage] = {}
    for one in [*_items(answers, "jobs"), *_items(answers, "own_pods")]:
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
                    note(resource, _quantity(text), f"limit range {_name(one)}")
    for one in _items(answers, "quotas"):
        status = one.get("status") or {}
        for key, text in (status.get("hard") or {}).items():
            resource = key.removeprefix("requests.").removeprefix("limits.")
            if resource in ("cpu", "memory"):
                left = _quantity(text) - _quantity((status.get("used") or {}).get(key))
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
