"""Which machines a new target is for, and what a worker gets of one. Pure.

From the nodes if they may be seen; else from the table of machines, a quota or a limit range.
"""

from __future__ import annotations

import math

from headway.kube.cluster_facts import ClusterFacts
from headway.kube.node_facts import INSTANCE_TYPE, MachineGroup
from headway.kube.undecided import Choice, Undecided, Wishes, listed
from headway.plan.machines import CPU, POD_SHARE, Machine, find_machine, machine_names
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
    what = f"free on most of {room.num_nodes} machines" if room.num_nodes > 1 else "free"
    if not room.is_free:
        what = "half of what machines have; what is free may not be seen"
    comment = f"{what}, less the coordinator's share"
    cores = room.cores * share - COORDINATOR_CORES
    memory = (room.memory_bytes * share - COORDINATOR_BYTES) * POD_SHARE
    for resource, amount, least in (("cpu", cores, 0.25), ("memory", memory, 2**29)):
        if amount < least:
            choice.notes.append(
                f"machines have too little {resource} free for a worker: pods will wait"
            )
        _add_amount(facts, choice, resource, max(amount, least), comment)
    _architecture(facts, None, choice)


def _cpu_unseen(facts: ClusterFacts, choice: Choice) -> None:
    what = "machines may not be seen"
    if facts.num_nodes is not None:
        what = "no machine takes any pod"
        choice.notes.append(
            "every machine has a taint, or an accelerator: say which pods tolerate, with "
            "--set 'pod.tolerations=[{key: KEY, operator: Exists}]', and for coordinator"
        )
    for resource, blind, upper in zip(("cpu", "memory"), BLIND, MOST_BLIND, strict=True):
        # Half of a limit range or a quota, so that a run of two fits.
        amount = upper * 2 if resource in facts.limits else blind
        comment = f"{what}: --set pod.resources.{resource}=..."
        _add_amount(facts, choice, resource, amount, comment, upper)


def _add_amount(
    facts: ClusterFacts,
    choice: Choice,
    resource: str,
    amount: float,
    comment: str,
    most: float = math.inf,
) -> float:
    """Of a limit range or a quota at most half: a second worker and the coordinator need some.
    Returns what it became."""
    if resource in facts.limits and amount > facts.limits[resource][0] / 2:
        limit, whose = facts.limits[resource]
        amount, comment = limit / 2, f"half of {whose}"
    amount = min(amount, most)
    choice.add(("pod", "resources", resource), _written(resource, amount), comment)
    return amount


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
    _add_amount(facts, choice, "cpu", cores * POD_SHARE, whose)
    given = _add_amount(facts, choice, "memory", memory * POD_SHARE, whose)
    _add_fabric(facts, group, choice)
    _add_shared_memory(given, choice)
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
        whose = f"95 % of what {machine.name} has"
        _add_amount(facts, choice, "cpu", machine.cpu * POD_SHARE, whose)
        memory = machine.memory_mib * 2**20 * POD_SHARE
        given = _add_amount(facts, choice, "memory", memory, whose)
        for resource, number in machine.fabric.items():
            choice.add(("pod", "resources", resource), number, "all that it has")
        _add_shared_memory(given, choice)
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


def _add_shared_memory(memory_bytes: float, choice: Choice) -> None:
    if memory_bytes >= LARGE_BYTES:
        choice.add(("pod", "shared_memory"), "16Gi", "/dev/shm, for NCCL and data loaders")


def _toleration(key: str, value: str, effect: str) -> dict[str, str]:
    named = {"operator": "Equal", "value": value} if value else {"operator": "Exists"}
    return {"key": key, **named, "effect": effect}


def _architecture(facts: ClusterFacts, group: MachineGroup | None, choice: Choice) -> None:
    if len(facts.architectures) < 2:
        return
    mine = group.architectures if group is not None else facts.architectures
    chosen = "amd64" if "amd64" in mine else sorted(mine)[0]
    comment = f"machines are {' and '.join(sorted(facts.architectures))}; of the image"
    choice.add(("pod", "architecture"), chosen, comment)
    choice.add(("coordinator", "architecture"), chosen, "the same image")
