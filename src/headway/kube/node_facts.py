"""What nodes and their pods say: machines with accelerators by type, what is free, and what every
machine runs. Pure, of dicts as the API has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low

from headway.kube.device_labels import AWS_PREFIXES, BOARDS, GKE, PRODUCT
from headway.kube.names import Object
from headway.kube.reviews import amount
from headway.plan.machines import EFA, MACHINES, Machine, find_machine, machine_on_premises
from headway.plan.unsupported_accelerators import family_of_resource
from headway.spec.pod_config import ARCHITECTURE
from headway.spec.quantities import Accelerators

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
GPU = "nvidia.com/gpu"
RDMA = "rdma/"
SYSTEM = "kubernetes.io/os"
UNKNOWN_KIND = "gpu"
PASSING_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "ToBeDeleted")
"""Beginnings of taints that say how a machine is at the moment, not what it is for."""


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
    num_damaged: int
    """Machines beside them of the same type that offer fewer accelerators, such as 7."""
    num_free: int | None
    """Accelerators that no pod has; None: pods of others may not be seen."""
    cores: float
    """The least that one of them has besides the pods that every machine runs (DaemonSets)."""
    memory_bytes: int
    fabric: Mapping[str, int]
    """RDMA and EFA resources that all of them have."""
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


def quantity(text: str | None) -> float:
    return float(amount(text or "0"))


def labels_of(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def has_label(node: Object, label: tuple[str, str]) -> bool:
    return labels_of(node).get(label[0]) == label[1]


def takes_pods(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions") or ()
    if labels_of(node).get(SYSTEM, "linux") != "linux":
        return False
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
    return int(quantity(_allocatable(node).get(GPU)))


def _device_of(node: Object) -> str | None:
    """By its labels, else by the machine's type. Of one that is partitioned or shared (another
    product than that of a whole board) nothing is known."""
    found = _labelled_device(node)
    if found is not None or PRODUCT in labels_of(node):
        return found
    machine = find_machine(labels_of(node).get(INSTANCE_TYPE, ""))
    return machine.device if machine is not None else None


def _labelled_device(node: Object) -> str | None:
    """By the labels of GPU feature discovery and of the clouds."""
    labels = labels_of(node)
    product = labels.get(PRODUCT)
    for name, board in BOARDS.items():
        if product in board.products:
            return name
        if product is not None:
            continue
        if labels.get(GKE) in board.gke:
            return name
        for prefix in AWS_PREFIXES:
            memory = labels.get(f"{prefix}/instance-gpu-memory")
            is_memory = board.aws_memory_mib is None or memory == str(board.aws_memory_mib)
            is_name = labels.get(f"{prefix}/instance-gpu-name") == board.aws_name
            if board.aws_name is not None and is_name and is_memory:
                return name
    return None


def machine_groups(
    nodes: Sequence[Object], used: Mapping[str, PodRequests] | None
) -> Iterator[MachineGroup]:
    by_type: dict[tuple[str, str, int], list[Object]] = {}
    for node in nodes:
        if _num_gpus(node):
            # Machines have 1, 2, 4, 8 or 16: one that offers 7 has lost one.
            kind, whole = _device_of(node) or UNKNOWN_KIND, _power_of_two(_num_gpus(node))
            by_type.setdefault((_type_of(node, kind, whole), kind, whole), []).append(node)
    for (name, kind, whole), members in by_type.items():
        number = max(_num_gpus(node) for node in members)
        healthy = [node for node in members if _num_gpus(node) == number]
        if number != whole:
            name = _type_of(members[0], kind, number)
        yield _group(name, Accelerators(kind, number), healthy, len(members) - len(healthy), used)


def _power_of_two(number: int) -> int:
    return int(1 << (number - 1).bit_length())


def _group(
    name: str,
    accelerators: Accelerators,
    nodes: Sequence[Object],
    num_damaged: int,
    used: Mapping[str, PodRequests] | None,
) -> MachineGroup:
    requests = [(used or {}).get(node["metadata"]["name"], PodRequests()) for node in nodes]
    both = list(zip(nodes, requests, strict=True))
    free = accelerators.count * len(nodes) - sum(one.gpus for one in requests)
    return MachineGroup(
        name=name,
        machine=find_machine(name),
        accelerators=accelerators,
        type_label=labels_of(nodes[0]).get(INSTANCE_TYPE, ""),
        is_labelled=all(_labelled_device(node) is not None for node in nodes),
        num_nodes=len(nodes),
        num_damaged=num_damaged,
        num_free=free if used is not None else None,
        cores=min(_cores(node) - one.daemon_cores for node, one in both),
        memory_bytes=min(_memory(node) - one.daemon_bytes for node, one in both),
        fabric=_common_fabric(nodes),
        taints=tuple(sorted(set.intersection(*map(_taints, nodes)))),
        architectures=frozenset(labels_of(node).get(ARCHITECTURE, "") for node in nodes) - {""},
    )


def _type_of(node: Object, kind: str, number: int) -> str:
    label = labels_of(node).get(INSTANCE_TYPE, "")
    on_premises = machine_on_premises(kind, number)
    if find_machine(label) is None and on_premises is not None:
        return on_premises.name
    return label or f"{kind}:{number}"


def _cores(node: Object) -> float:
    return quantity(_allocatable(node).get("cpu"))


def _memory(node: Object) -> int:
    return int(quantity(_allocatable(node).get("memory")))


def _common_fabric(nodes: Sequence[Object]) -> dict[str, int]:
    first, *others = nodes
    return {
        name: int(quantity(text))
        for name, text in _allocatable(first).items()
        if (name.startswith(RDMA) or name == EFA)
        and quantity(text) > 0
        and all(_allocatable(node).get(name) == text for node in others)
    }


def pool_machines(pools: Iterable[Object]) -> list[str]:
    """Machines of the table that Karpenter's NodePools name, by type or by GPU. They need not be
    there: it makes them when pods ask for them."""
    types: set[str] = set()
    boards: set[str] = set()
    for pool in pools:
        spec = pool["spec"]["template"]["spec"]
        for one in spec.get("requirements") or ():
            if one.get("operator") != "In":
                continue
            if one["key"] == INSTANCE_TYPE:
                types |= {*one.get("values", ())}
            if one["key"] in [f"{prefix}/instance-gpu-name" for prefix in AWS_PREFIXES]:
                boards |= {*one.get("values", ())}
    return [
        machine.name
        for machine in MACHINES
        if machine.name in types
        or (machine.place == "AWS" and BOARDS[machine.device].aws_name in boards)
    ]


def unsupported_on(nodes: Sequence[Object]) -> set[str]:
    families = (family_of_resource(name) for node in nodes for name in _allocatable(node))
    return {family.name for family in families if family is not None}


def without_plugin_on(nodes: Sequence[Object]) -> set[str]:
    return {
        labels_of(node).get(INSTANCE_TYPE, node["metadata"]["name"])
        for node in nodes
        if _device_of(node) is not None and not _num_gpus(node)
    }


def cpu_room_of(nodes: Sequence[Object], used: Mapping[str, PodRequests] | None) -> CpuRoom | None:
    """Of machines that take any pod. Half of them have at least that much."""
    plain = [n for n in nodes if not _num_gpus(n) and _device_of(n) is None and not _taints(n)]
    if not plain:
        return None
    taken = [(used or {}).get(node["metadata"]["name"], PodRequests()) for node in plain]
    return CpuRoom(
        cores=median_low(_cores(n) - u.cores for n, u in zip(plain, taken, strict=True)),
        memory_bytes=median_low(
            _memory(n) - u.memory_bytes for n, u in zip(plain, taken, strict=True)
        ),
        num_nodes=len(plain),
        is_free=used is not None,
    )


@dataclass(frozen=True)
class PodRequests:
    """What pods of a machine request."""

    cores: float = 0
    memory_bytes: int = 0
    gpus: int = 0
    daemon_cores: float = 0
    """Of that, pods that every machine runs."""
    daemon_bytes: int = 0

    def __add__(self, other: PodRequests) -> PodRequests:
        return PodRequests(
            self.cores + other.cores,
            self.memory_bytes + other.memory_bytes,
            self.gpus + other.gpus,
            self.daemon_cores + other.daemon_cores,
            self.daemon_bytes + other.daemon_bytes,
        )


def requests_by_node(pods: Iterable[Object]) -> dict[str, PodRequests]:
    found: dict[str, PodRequests] = {}
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName")
        if node is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            continue
        more = _requests(pod["spec"])
        owners = pod["metadata"].get("ownerReferences") or ()
        if any(one["kind"] in ("DaemonSet", "Node") for one in owners):
            more += PodRequests(daemon_cores=more.cores, daemon_bytes=more.memory_bytes)
        found[node] = found.get(node, PodRequests()) + more
    return found


def _requests(spec: Object) -> PodRequests:
    """Of its containers and sidecars together, or of its largest init container."""
    init = spec.get("initContainers") or []
    sidecars = [one for one in init if one.get("restartPolicy") == "Always"]
    others = [one for one in init if one.get("restartPolicy") != "Always"]
    lasting = [_request(one) for one in [*spec.get("containers", ()), *sidecars]]
    first = [_request(one) for one in others]
    return PodRequests(
        max([sum(one.cores for one in lasting), *(one.cores for one in first)]),
        max([sum(one.memory_bytes for one in lasting), *(one.memory_bytes for one in first)]),
        max([sum(one.gpus for one in lasting), *(one.gpus for one in first)]),
    )


def _request(container: Object) -> PodRequests:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return PodRequests(
        quantity(asked.get("cpu")),
        int(quantity(asked.get("memory"))),
        int(quantity(asked.get(GPU))),
    )
