"""Which machines a new target is for, and what a worker gets of one. Pure.

From the nodes if they may be seen; else from the table of machines, a quota or a limit range.
"""

from __future__ import annotations

import math

from headway.kube.cluster_facts import ClusterFacts
from headway.kube.node_facts import INSTANCE_TYPE, MachineGroup
from headway.kube.undecided import Choice, Undecided, Wishes, listed
from headway.plan.machines import (
    CPU,
    Machine,
    find_machine,
    machine_names,
    nearly_all,
)
from headway.spec.quantities import Accelerators

COORDINATOR_CORES, COORDINATOR_BYTES = 0.5, 2**29
BLIND = (1.0, 2 * 2**30)
"""Cores and bytes of a worker where nothing says what machines have: they fit nearly anywhere."""
MOST_BLIND = (4.0, 16 * 2**30)
"""The most of them that half of a quota may become."""
SHARED_PLUGIN = 64
"""More RDMA devices than a machine has: its plugin shares one, and a pod asks for one."""
LARGE_BYTES = 128 * 2**30


def choose_machine(facts: ClusterFacts, wishes: Wishes, choice: Choice) -> Undecided | None:
    wanted = wishes.machine
    names = [group.name for group in facts.machines]
    made = [name for name in facts.pool_machines if name not in names]
    if wanted is None and not names and made:
        return Undecided(
            f"no machine has an accelerator now, and Karpenter can make some: {listed(made[:5])}"
            + (", ..." if len(made) > 5 else ""),
            tuple(("--machine", name) for name in [*made[:5], CPU]),
        )
    if wanted is None and len(names) > 1:
        return Undecided(
            f"machines of {len(names)} types have accelerators: {listed(names)}",
            tuple(("--machine", name) for name in [*names, CPU]),
        )
    wanted = wanted or (names[0] if names else CPU)
    group = facts.group(wanted)
    if wanted == CPU:
        _cpu(facts, choice, is_given=wishes.machine is not None)
    elif group is not None:
        _of_group(facts, group, choice)
    elif (machine := find_machine(wanted)) is not None:
        _of_table(facts, machine, choice)
    else:
        known = tuple(("--machine", name) for name in [*names, CPU])
        more = () if names else (f"Headway knows {listed(machine_names())}",)
        return Undecided(f"--machine {wanted}: neither seen here nor known to Headway", known, more)
    return None


def _cpu(facts: ClusterFacts, choice: Choice, is_given: bool) -> None:
    if is_given:
        choice.add(("machine",), CPU, "--machine")
    elif facts.num_nodes is not None and not facts.unsupported:
        choice.add(("machine",), CPU, "no machine has an accelerator now; or --machine")
    room = facts.cpu_room
    if room is None:
        _cpu_unseen(facts, choice)
        return
    share = 1.0 if room.is_free else 0.5
    cores = room.cores * share - COORDINATOR_CORES
    memory = room.memory_bytes * share - COORDINATOR_BYTES
    what = f"free on most of {room.num_nodes} machines" if room.num_nodes > 1 else "free"
    if not room.is_free:
        what = "half of what machines have; what is free may not be seen"
    comment = f"{what}, less the coordinator's share"
    _add_room(choice, cores, memory, comment)
    _architecture(facts, None, choice)


def _cpu_unseen(facts: ClusterFacts, choice: Choice) -> None:
    """Of a limit range or a quota half, so that a run of two fits."""
    least = dict(zip(("cpu", "memory"), BLIND, strict=True))
    for (resource, most), upper in zip(least.items(), MOST_BLIND, strict=True):
        comment = f"machines may not be seen: --set pod.resources.{resource}=..."
        amount = most
        if resource in facts.limits:
            limit, whose = facts.limits[resource]
            amount = min(limit / 2, upper)
            comment = f"half of {whose}, at most {upper:g} cores"
            if resource == "memory":
                comment = f"half of {whose}, at most {upper / 2**30:g} GiB"
        choice.add(("pod", "resources", resource), _written(resource, amount), comment)


def _add_room(choice: Choice, cores: float, memory: float, comment: str) -> None:
    least_cores, least_memory = 0.25, 2**29
    for resource, amount, least in (
        ("cpu", cores, least_cores),
        ("memory", memory * 0.95, least_memory),
    ):
        if amount < least:
            choice.notes.append(
                f"machines have too little {resource} free for a worker: pods will wait"
            )
            amount = least
        choice.add(("pod", "resources", resource), _written(resource, amount), comment)


def _written(resource: str, amount: float) -> str | int:
    """Whole cores and GiB, if there is one at all."""
    if resource == "cpu":
        return math.floor(amount) if amount >= 1 else f"{math.floor(amount * 1000)}m"
    gib = math.floor(amount / 2**30)
    return f"{gib}Gi" if gib >= 1 else f"{math.floor(amount / 2**20)}Mi"


def _of_group(facts: ClusterFacts, group: MachineGroup, choice: Choice) -> None:
    machine = group.machine
    number = f"{group.num_nodes} machines" if group.num_nodes > 1 else "1 machine"
    if machine is not None:
        choice.add(("machine",), machine.name, f"{number}; Headway has never run on one")
    free = "" if group.num_free is None else f"; {group.num_free} free now"
    _add_accelerators(choice, group.accelerators, f"what a machine has{free}")
    if not group.is_labelled and group.type_label:
        labels = [{INSTANCE_TYPE: group.type_label}]
        comment = "its nodes have no label of the accelerator that Headway knows"
        choice.add(("accelerators", group.accelerators.kind), labels, comment)
    has_others = facts.cpu_room is not None
    cores, memory = group.cores, group.memory_bytes
    whose = "95 % of what its nodes have"
    if not has_others:
        cores, memory = cores - COORDINATOR_CORES, memory - COORDINATOR_BYTES
        whose += ", less the coordinator's"
    for resource, amount in nearly_all(cores, memory).items():
        choice.add(("pod", "resources", resource), _plain(amount), whose)
    _add_fabric(facts, group, choice)
    _add_shared_memory(group.memory_bytes, choice)
    tolerations = [_toleration(*taint) for taint in group.taints]
    if tolerations:
        choice.add(("pod", "tolerations"), tolerations, "taints that all of them have")
        if not has_others:
            comment = "no machine without accelerators takes the coordinator"
            choice.add(("coordinator", "tolerations"), tolerations, comment)
    if group.num_damaged:
        choice.notes.append(
            f"{group.num_damaged} of {group.num_nodes + group.num_damaged} machines offer fewer "
            f"than {group.accelerators.count} accelerators: workers do not fit there"
        )
    _architecture(facts, group, choice)


def _of_table(facts: ClusterFacts, machine: Machine, choice: Choice) -> None:
    choice.add(("machine",), machine.name, "--machine; Headway has never run on one")
    _add_accelerators(choice, machine.accelerators, "what a machine has")
    if machine.cpu is None or machine.memory_mib is None:
        _cpu_unseen(facts, choice)
        choice.notes.append(
            f"nodes may not be seen, and each site's {machine.name} is another: say what a worker "
            "gets with --set pod.resources.cpu=... and memory"
        )
    else:
        for resource, amount in machine.pod_resources().items():
            comment = "all that it has" if "/" in resource else f"95 % of what {machine.name} has"
            choice.add(("pod", "resources", resource), _plain(amount), comment)
        _add_shared_memory(machine.memory_mib * 2**20, choice)
        _add_variables(machine, choice)


def _add_accelerators(choice: Choice, found: Accelerators, comment: str) -> None:
    if found.kind == "gpu":
        comment += "; no label says which kind"
    choice.add(("resources", "accelerators"), str(found), comment)


def _add_fabric(facts: ClusterFacts, group: MachineGroup, choice: Choice) -> None:
    machine = group.machine
    if machine is None:
        return
    if machine.place != "premises":
        offered = {name: group.fabric[name] for name in machine.fabric if name in group.fabric}
        for resource, number in offered.items():
            choice.add(("pod", "resources", resource), number, "all that its nodes offer")
        if machine.fabric and not offered:
            choice.notes.append(
                f"its nodes offer no {listed(machine.fabric)} (no device plugin?): workers will "
                "use TCP between machines, which is many times slower"
            )
        else:
            _add_variables(machine, choice)
        return
    if not group.fabric:
        choice.notes.append(
            "its nodes offer no rdma/ resource: workers will use TCP between machines"
        )
        return
    if facts.level not in (None, "privileged"):
        choice.notes.append(
            f"{listed(group.fabric)} is left out: it needs the capability IPC_LOCK, and the "
            f"namespace enforces {facts.level}"
        )
        return
    for resource, present in group.fabric.items():
        number = 1 if present >= SHARED_PLUGIN else min(present, machine.num_devices)
        choice.add(("pod", "resources", resource), number, "network devices of its nodes")
    _add_variables(machine, choice)
    choice.add(("security",), "baseline", "RDMA needs the capability IPC_LOCK")


def _add_variables(machine: Machine, choice: Choice) -> None:
    for name, value in machine.variables.items():
        comment = "NCCL fails without the fabric, instead of using TCP silently"
        choice.add(("pod", "env", name), value, comment)
    if machine.not_filled:
        choice.notes.append(
            f"{machine.name}: {machine.not_filled} is not filled in; without it NCCL uses TCP: "
            "https://cloud.google.com/kubernetes-engine/docs/how-to/gpu-bandwidth-gpudirect-tcpx"
        )


def _add_shared_memory(memory_bytes: int, choice: Choice) -> None:
    if memory_bytes >= LARGE_BYTES:
        choice.add(("pod", "shared_memory"), "16Gi", "/dev/shm, for NCCL and data loaders")


def _toleration(key: str, value: str, effect: str) -> dict[str, str]:
    named = {"operator": "Equal", "value": value} if value else {"operator": "Exists"}
    return {"key": key, **named, "effect": effect}


def _plain(amount: str) -> str | int:
    return int(amount) if amount.isdigit() else amount


def _architecture(facts: ClusterFacts, group: MachineGroup | None, choice: Choice) -> None:
    if len(facts.architectures) < 2:
        return
    mine = group.architectures if group is not None else facts.architectures
    chosen = "amd64" if "amd64" in mine else sorted(mine)[0]
    comment = f"machines are {' and '.join(sorted(facts.architectures))}; of the image"
    choice.add(("pod", "architecture"), chosen, comment)
    choice.add(("coordinator", "architecture"), chosen, "the same image")
