"""What a new target says, from what was seen of its cluster and what the user asked for. Pure.

Nothing is guessed that would cost a run: what cannot be decided is an error with the whole command
for each candidate. What the cluster is not asked for is a line that is commented out.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headway.errors import BadInput
from headway.kube.cluster_facts import INSTANCE_TYPE, ClusterFacts, MachineGroup, least_of, name_of
from headway.kube.images import stock_images
from headway.plan.machines import CPU, POD_SHARE, Machine, find_machine, machine_names
from headway.spec.target_file import Target
from headway.spec.target_text import TargetLine

FLAGS = ("--context", "--namespace", "--image", "--storage", "--machine", "--queue")
ADDRESS = "ADDRESS@sha256:DIGEST"
UNSEEN_AMOUNTS: Mapping[str, Any] = {"cpu": 1, "memory": "2Gi"}
"""What a worker gets where nothing says what machines have: it fits nearly anywhere."""
CPU_SHARE = 0.5
"""What a worker gets of a machine without accelerators: a second one and the coordinator need some,
and what is free is not asked."""
TEMPLATE: Sequence[TargetLine] = tuple(
    TargetLine(path, value, comment, is_set=False)
    for path, value, comment in (
        (("pod", "env"), {"NCCL_DEBUG": "INFO"}, "variables of all pods"),
        (("pod", "shared_memory"), "16Gi", "/dev/shm, 1Gi by default: for NCCL and data loaders"),
        (("pod", "tolerations"), [{"key": "KEY", "operator": "Exists"}], "taints of machines"),
        (("pod", "node_selector"), {"LABEL": "VALUE"}, "which machines"),
        (("pod", "architecture"), "amd64", "if machines are of several"),
        (("pod", "image_pull_secrets"), ["name"], "of a registry that needs a login"),
        (
            ("service_account",),
            {"coordinator": "headway-coordinator"},
            "if you may not create Roles; once, by an administrator: headway target rbac",
        ),
        (("secret",), "name", "a Secret with variables of runs, such as HF_TOKEN"),
        (("prices",), {"H100": 2.1}, "dollars an hour for a device"),
        (("coordinator",), {"tolerations": []}, "its own placement, image and resources"),
    )
)
"""Keys of a target that many need and no cluster is asked for. `docs/reference/targets-file.md` has
all keys."""


@dataclass(frozen=True)
class Wishes:
    """The flags of `headway target add`."""

    name: str
    context: str | None
    """Of the kubeconfig, given or the current one; None: in a pod."""
    namespace: str
    image: str | None = None
    storage: str | None = None
    machine: str | None = None
    queue: str | None = None
    typed: Mapping[str, str] = field(default_factory=dict)
    """The flags as they were typed, for commands to paste..."""
    settings: tuple[str, ...] = ()
    """... and those of --set."""

    def command(self, more: Mapping[str, str]) -> str:
        """As it was typed, with these flags in place of the same."""
        both = {**self.typed, **more}
        flags = {flag: both[flag] for flag in FLAGS if flag in both}
        words = [word for flag, value in flags.items() for word in (flag, value)]
        settings = [word for one in self.settings for word in ("--set", one)]
        return shlex.join(["headway", "target", "add", self.name, *words, *settings])

    def with_flag(self, flag: str, value: str) -> Wishes:
        """The same, as if `flag` had been typed as well."""
        changed: dict[str, Any] = {flag.removeprefix("--"): value}
        return replace(self, typed={**self.typed, flag: value}, **changed)


class Undecided(Exception):
    """A choice that the user has to make, by `flag`. `values`: each that would do; if
    `is_example`, the form of one."""

    def __init__(
        self, problem: str, flag: str, values: Sequence[str], is_example: bool = False
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.flag = flag
        self.values = values
        self.is_example = is_example

    @property
    def candidates(self) -> list[tuple[str, str]]:
        return [(self.flag, value) for value in self.values]


def target_lines(
    facts: ClusterFacts, wishes: Wishes, others: Mapping[str, Target]
) -> list[TargetLine]:
    """Return the lines of a new target. `others` are targets of the same context. Raises BadInput
    with a command for each candidate."""
    found, undecided = _decided(facts, wishes, others)
    if undecided:
        raise _error(undecided, wishes)
    return [*found, *(one for one in TEMPLATE if not _is_given(one.path, found))]


def open_questions(
    facts: ClusterFacts, wishes: Wishes, others: Mapping[str, Target]
) -> list[Undecided]:
    """Return what `target_lines` would refuse."""
    return _decided(facts, wishes, others)[1]


def _decided(
    facts: ClusterFacts, wishes: Wishes, others: Mapping[str, Target]
) -> tuple[list[TargetLine], list[Undecided]]:
    found: list[TargetLine] = []
    undecided: list[Undecided] = []
    parts: Sequence[Callable[[], list[TargetLine]]] = (
        lambda: _place(wishes),
        lambda: _image(wishes, others),
        lambda: _storage(facts, wishes),
        lambda: _machine(facts, wishes),
        lambda: _queue(facts, wishes),
        lambda: _spot(facts),
        lambda: _security(facts),
    )
    for part in parts:
        try:
            found += part()
        except Undecided as one:
            undecided.append(one)
    return found, undecided


def _is_given(path: tuple[str, ...], lines: Sequence[TargetLine]) -> bool:
    return any(line.path[: len(path)] == path for line in lines)


def _error(undecided: Sequence[Undecided], wishes: Wishes) -> BadInput:
    """Return all that is undecided as one error, each with its commands. A command is whole: of
    what else is open it has the first candidate."""
    said: set[str] = set()
    parts = []
    for one in undecided:
        rest = dict(other.candidates[0] for other in undecided if other is not one)
        commands = [wishes.command({**rest, **dict([flag])}) for flag in one.candidates]
        parts.append("\nhint: ".join([one.problem, *(c for c in commands if c not in said)]))
        said |= {*commands}
    message, _, hints_and_more = "\nerror: ".join(parts).partition("\nhint: ")
    return BadInput(message, hints_and_more)


def _place(wishes: Wishes) -> list[TargetLine]:
    whose = "--namespace" if "--namespace" in wishes.typed else "of the context"
    lines = [TargetLine(("kube", "namespace"), wishes.namespace, whose)]
    if wishes.context is not None:
        lines = [TargetLine(("kube", "context"), wishes.context, "of your kubeconfig"), *lines]
    return lines


def _image(wishes: Wishes, others: Mapping[str, Target]) -> list[TargetLine]:
    if wishes.image is not None:
        return [TargetLine(("image",), wishes.image, "--image")]
    known = {target.image: name for name, target in others.items() if target.image is not None}
    if len(known) == 1:
        [(image, name)] = known.items()
        lines = [TargetLine(("image",), image, f"as target {name} has")]
        if (coordinator := others[name].coordinator.image) is not None:
            comment = f"as target {name} has"
            lines.append(TargetLine(("coordinator", "image"), coordinator, comment))
        return lines
    if known:
        problem = f"targets of this context have {len(known)} images"
        raise Undecided(problem, "--image", list(known))
    if stock_images().core:
        comment = "left out: PyTorch's own"
        return [TargetLine(("image",), ADDRESS, comment, is_set=False)]
    raise Undecided(
        "no image is known; headway image build --push REGISTRY/NAME builds one "
        "(docs/guides/first-cluster-run.md#the-image)",
        "--image",
        [ADDRESS],
        is_example=True,
    )


def _storage(facts: ClusterFacts, wishes: Wishes) -> list[TargetLine]:
    given = wishes.storage
    if given is not None and "://" in given:
        comment = "--storage; pods reach it as themselves, or by storage.secret"
        return [TargetLine(("storage", "url"), given, comment)]
    if given is not None:
        return [TargetLine(("storage", "claim"), given.removeprefix("claim:"), "--storage")]
    names = [name_of(claim) for claim in facts.claims]
    if len(names) == 1:
        comment = "the one claim with ReadWriteMany"
        return [TargetLine(("storage", "claim"), names[0], comment)]
    if names:
        raise Undecided(
            f"several claims can be written by many machines: {', '.join(names)}",
            "--storage",
            [f"claim:{name}" for name in names],
        )
    raise Undecided(
        f"no claim of namespace {wishes.namespace} is bound and can be written by many machines "
        "(ReadWriteMany)",
        "--storage",
        [f"{'gs' if '-gke' in facts.version else 's3'}://BUCKET/PREFIX"],
        is_example=True,
    )


def _queue(facts: ClusterFacts, wishes: Wishes) -> list[TargetLine]:
    if wishes.queue is not None:
        return [TargetLine(("queue",), wishes.queue, "--queue")]
    if len(facts.queues) > 1:
        raise Undecided(
            f"the namespace has {len(facts.queues)} queues: {', '.join(facts.queues)}",
            "--queue",
            facts.queues,
        )
    if facts.queues:
        comment = "the one LocalQueue of the namespace (Kueue)"
        return [TargetLine(("queue",), facts.queues[0], comment)]
    return [TargetLine(("queue",), "name", "of Kueue; none is active here", is_set=False)]


def _spot(facts: ClusterFacts) -> list[TargetLine]:
    if facts.spot is not None:
        return [TargetLine(("spot_label",), dict([facts.spot]), "some machines have it")]
    unseen = "no machine has one" if facts.are_nodes_seen else "nodes may not be seen"
    label = {"karpenter.sh/capacity-type": "spot"}
    return [TargetLine(("spot_label",), label, f"of spot machines; {unseen}", is_set=False)]


def _security(facts: ClusterFacts) -> list[TargetLine]:
    comment = "what the namespace enforces" if facts.level == "restricted" else "fits anywhere"
    if facts.level not in (None, "restricted"):
        comment = f"the namespace enforces {facts.level}, which takes it as well"
    return [TargetLine(("security",), "restricted", comment)]


# Machines


def _machine(facts: ClusterFacts, wishes: Wishes) -> list[TargetLine]:
    wanted, names = wishes.machine, [group.name for group in facts.machines]
    if wanted is None and len(names) > 1:
        problem = f"machines of {len(names)} types have accelerators: {', '.join(names)}"
        raise Undecided(problem, "--machine", [*names, CPU])
    name = wanted or (names[0] if names else CPU)
    group = next((one for one in facts.machines if one.name == name), None)
    if group is not None:
        return _of_group(group)
    if (machine := find_machine(name)) is not None:
        return _of_table(machine)
    if name != CPU:
        known = ", ".join(machine_names())
        problem = f"--machine {name}: neither seen here nor known to Headway, which knows {known}"
        raise Undecided(problem, "--machine", [*names, CPU])
    return _of_cpu(facts, is_given=wanted is not None)


def _of_cpu(facts: ClusterFacts, is_given: bool) -> list[TargetLine]:
    lines = []
    if is_given:
        lines = [TargetLine(("machine",), CPU, "--machine")]
    elif facts.are_nodes_seen:
        lines = [TargetLine(("machine",), CPU, "no machine has an accelerator now; or --machine")]
    if not facts.plain:
        comment = "nothing says what machines have: --set pod.resources.{}=..."
        return lines + [
            TargetLine(("pod", "resources", name), amount, comment.format(name))
            for name, amount in UNSEEN_AMOUNTS.items()
        ]
    return lines + _amounts(*least_of(facts.plain), CPU_SHARE, "half of the smallest machine")


def _of_group(group: MachineGroup) -> list[TargetLine]:
    machine, number = group.machine, len(group.nodes)
    comment = f"{number} machine{'s' if number > 1 else ''}; Headway has never run on one"
    lines = [] if machine is None else [_machine_line(machine, comment)]
    which = "; no label says which kind" if group.accelerators.kind == "gpu" else ""
    what = f"what a machine has{which}"
    lines.append(TargetLine(("resources", "accelerators"), str(group.accelerators), what))
    if not group.is_labelled and group.type_label:
        labels = [{INSTANCE_TYPE: group.type_label}]
        comment = "its nodes have no label of the accelerator that Headway knows"
        lines.append(TargetLine(("accelerators", group.accelerators.kind), labels, comment))
    lines += _amounts(*group.least, POD_SHARE, "95 % of what its nodes have")
    if machine is not None:
        lines += _fabric(machine, all(group.offers(name) for name in machine.fabric))
    if tolerations := [_toleration(*taint) for taint in group.taints]:
        comment = "taints that all of them have"
        lines.append(TargetLine(("pod", "tolerations"), tolerations, comment))
    return lines


def _of_table(machine: Machine) -> list[TargetLine]:
    of_worker, whose = UNSEEN_AMOUNTS, f"each site's {machine.name} is another: --set ..."
    if amounts := machine.pod_amounts():
        of_worker = {"cpu": int(amounts["cpu"]), "memory": amounts["memory"]}
        whose = f"95 % of what {machine.name} has"
    return [
        _machine_line(machine, "--machine; Headway has never run on one"),
        TargetLine(("resources", "accelerators"), str(machine.accelerators), "what a machine has"),
        *(TargetLine(("pod", "resources", name), of_worker[name], whose) for name in of_worker),
        *_fabric(machine, are_offered=True),
    ]


def _machine_line(machine: Machine, comment: str) -> TargetLine:
    if machine.not_filled:
        comment = f"{comment}. {machine.not_filled} is not filled in: NCCL uses TCP"
    return TargetLine(("machine",), machine.name, comment)


def _fabric(machine: Machine, are_offered: bool) -> list[TargetLine]:
    """Return network devices and NCCL's variables. On premises their resource has another name at
    every site, and needs a right to lock memory."""
    is_set = bool(machine.fabric) and are_offered
    fabric = machine.fabric or ({"rdma/NAME": machine.num_devices} if machine.variables else {})
    unset = "its nodes offer none (no device plugin?)"
    if machine.place == "premises":
        unset = "RDMA; with security: baseline, for the capability IPC_LOCK"
    comment = "network devices" if is_set else unset
    why = "NCCL fails without the fabric, instead of using TCP silently"
    return [
        *(TargetLine(("pod", "resources", n), v, comment, is_set) for n, v in fabric.items()),
        *(TargetLine(("pod", "env", n), v, why, is_set) for n, v in machine.variables.items()),
    ]


def _amounts(cores: float, memory: float, share: float, whose: str) -> list[TargetLine]:
    """Return a share in whole cores and GiB, if there is one at all."""
    cpu = math.floor(cores * share) or f"{math.floor(cores * share * 1000)}m"
    gib = math.floor(memory * share / 2**30)
    amount = f"{gib}Gi" if gib else f"{math.floor(memory * share / 2**20)}Mi"
    return [
        TargetLine(("pod", "resources", "cpu"), cpu, whose),
        TargetLine(("pod", "resources", "memory"), amount, whose),
    ]


def _toleration(key: str, value: str, effect: str) -> dict[str, str]:
    named = {"operator": "Equal", "value": value} if value else {"operator": "Exists"}
    return {"key": key, **named, "effect": effect}
