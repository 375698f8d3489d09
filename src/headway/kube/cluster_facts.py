"""What the API server's answers say about a cluster and a namespace, for a new target. Pure.

Each answer may be missing: users often may see their own namespace only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headway.kube.device_labels import AWS_PREFIXES, BOARDS, GKE, PRODUCT
from headway.kube.names import Object
from headway.kube.reviews import amount
from headway.plan.machines import Machine, find_machine, machine_on_premises
from headway.spec.quantities import Accelerators

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
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
GPU = "nvidia.com/gpu"
SYSTEM = "kubernetes.io/os"
UNKNOWN_KIND = "gpu"
LEAST = ("cpu", "memory")
PASSING_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "ToBeDeleted")
"""Beginnings of taints that say how a machine is at the moment, not what it is for."""


@dataclass(frozen=True)
class MachineGroup:
    """Machines of one type with accelerators."""

    name: str
    """Of the table of machines, else the label of its type, else what its nodes have."""
    accelerators: Accelerators
    """Of each; the kind is `gpu` if nothing says which."""
    type_label: str
    """Value of the label of its type; empty: it has none."""
    is_labelled: bool
    """Whether all of them have a label of the accelerator that pods are placed by."""
    nodes: Sequence[Object]

    @property
    def machine(self) -> Machine | None:
        """As it is in the table."""
        return find_machine(self.name)

    @property
    def least(self) -> tuple[float, float]:
        """Fewest cores and bytes that pods can have of one node."""
        return least_of(self.nodes)

    @property
    def taints(self) -> list[tuple[str, str, str]]:
        """Taints that all of the nodes have: key, value and effect."""
        return sorted(set.intersection(*map(_taints, self.nodes)))

    def offers(self, resource: str) -> bool:
        return all(_number(node, resource) for node in self.nodes)


@dataclass(frozen=True)
class ClusterFacts:
    version: str
    level: str | None
    """Pod security level that the namespace enforces; None: none, or it may not be seen."""
    are_nodes_seen: bool
    machines: Sequence[MachineGroup]
    """With accelerators, the most of them first."""
    plain: Sequence[Object]
    """Nodes without accelerators that take any pod."""
    claims: Sequence[Object]
    """Those that are bound, and that many machines can write to."""
    queues: Sequence[str]
    """Kueue's LocalQueues that are active."""
    spot: tuple[str, str] | None


def cluster_facts(answers: Answers) -> ClusterFacts:
    nodes = [node for node in _items(answers, "nodes") if _takes_pods(node)]
    namespace = answers.get("namespace") or {}
    groups = sorted(
        machine_groups([node for node in nodes if _number(node, GPU)]),
        key=lambda one: (-len(one.nodes) * one.accelerators.count, one.name),
    )
    return ClusterFacts(
        version=(answers.get("version") or {}).get("gitVersion", ""),
        level=(namespace.get("metadata", {}).get("labels") or {}).get(ENFORCED),
        are_nodes_seen=answers.get("nodes") is not None,
        machines=groups,
        plain=[node for node in nodes if not _number(node, GPU) and not _taints(node)],
        claims=[one for one in _items(answers, "claims") if _is_shared(one)],
        queues=[name_of(one) for one in _items(answers, "queues") if _is_active(one)],
        spot=next(
            (one for one in SPOT_LABELS if any(_labels(n).get(one[0]) == one[1] for n in nodes)),
            None,
        ),
    )


def name_of(one: Object) -> str:
    return str(one["metadata"]["name"])


def least_of(nodes: Iterable[Object]) -> tuple[float, float]:
    """Return the fewest cores and bytes that pods can have of one of these nodes."""
    has = [node.get("status", {}).get("allocatable") or {} for node in nodes]
    cores, memory = ([float(amount(one.get(each, "0"))) for one in has] for each in LEAST)
    return min(cores), min(memory)


def _items(answers: Answers, name: str) -> list[Object]:
    return list((answers.get(name) or {}).get("items") or ())


def _is_shared(claim: Object) -> bool:
    modes, phase = claim["spec"].get("accessModes") or (), claim.get("status", {}).get("phase")
    return SHARED_MODE in modes and phase == "Bound"


def _is_active(queue: Object) -> bool:
    conditions = (queue.get("status") or {}).get("conditions") or ()
    return all(one["status"] == "True" for one in conditions if one["type"] == "Active")


# Nodes


def machine_groups(nodes: Sequence[Object]) -> Iterator[MachineGroup]:
    """`nodes` have accelerators: 1, 2, 4, 8 or 16. A machine that offers fewer than others of its
    type, such as 7, has lost some, and is left out."""
    by_type: dict[tuple[str, str, int], list[Object]] = {}
    for node in nodes:
        whole = 1 << (_number(node, GPU) - 1).bit_length()
        key = _labels(node).get(INSTANCE_TYPE, ""), _device_of(node) or UNKNOWN_KIND, whole
        by_type.setdefault(key, []).append(node)
    for (type_label, kind, _), members in by_type.items():
        number = max(_number(node, GPU) for node in members)
        healthy = [node for node in members if _number(node, GPU) == number]
        on_premises = machine_on_premises(kind, number)
        name = type_label or f"{kind}:{number}"
        if find_machine(type_label) is None and on_premises is not None:
            name = on_premises.name
        is_labelled = all(_labelled_device(node) is not None for node in healthy)
        yield MachineGroup(name, Accelerators(kind, number), type_label, is_labelled, healthy)


def _labels(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _takes_pods(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions") or ()
    is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    is_linux = _labels(node).get(SYSTEM, "linux") == "linux"
    return is_ready and is_linux and not node.get("spec", {}).get("unschedulable")


def _taints(node: Object) -> set[tuple[str, str, str]]:
    return {
        (one["key"], one.get("value") or "", one["effect"])
        for one in node.get("spec", {}).get("taints") or ()
        if one["effect"] != "PreferNoSchedule" and not one["key"].startswith(PASSING_TAINTS)
    }


def _number(node: Object, resource: str) -> int:
    return int(amount((node.get("status", {}).get("allocatable") or {}).get(resource, "0")))


def _device_of(node: Object) -> str | None:
    """By its labels, else by the machine's type. Of one that is partitioned or shared (another
    product than that of a whole board) nothing is known."""
    found = _labelled_device(node)
    if found is not None or PRODUCT in _labels(node):
        return found
    machine = find_machine(_labels(node).get(INSTANCE_TYPE, ""))
    return machine.device if machine is not None else None


def _labelled_device(node: Object) -> str | None:
    """By the labels of GPU feature discovery and of the clouds."""
    labels = _labels(node)
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
