"""What `headway target add` saw of a cluster, in words."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headway.memory_limits import byte_size

if TYPE_CHECKING:
    from headway.kube.cluster_facts import ClusterFacts
    from headway.kube.node_facts import MachineGroup
    from headway.kube.undecided import Wishes

FIRST = 14
MOST_COLUMNS = 100
MOST_POOLS = 5
NOT_SEEN = "may not be seen"


def shown(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Within the width of the terminal."""
    width = min(shutil.get_terminal_size().columns, MOST_COLUMNS) - 1
    for name, text in rows:
        yield from textwrap.wrap(
            f"{name:<{FIRST}}{text}",
            width,
            subsequent_indent=" " * FIRST,
            break_long_words=False,
            break_on_hyphens=False,
        )


def seen_rows(facts: ClusterFacts, wishes: Wishes) -> list[tuple[str, str]]:
    where = f"context {wishes.context}, " if wishes.context else ""
    who = f", as {facts.user}" if facts.user else ""
    return [
        ("cluster", f"Kubernetes {facts.version or 'of unknown version'}"),
        ("you", f"{where}namespace {wishes.namespace}{who}"),
        ("rights", _rights(facts)),
        *(("accelerators", text) for text in _accelerators(facts)),
        ("cpu machines", _cpu(facts)),
        ("claims", _claims(facts)),
        ("classes", _classes(facts)),
        ("queues", ", ".join(facts.queues) or "none of Kueue"),
        ("spot", _spot(facts)),
        ("pod security", facts.level or "none enforced, or it may not be seen"),
        *(("images", text) for text in _images(facts)),
    ]


def _rights(facts: ClusterFacts) -> str:
    missing = [right for right, may in facts.rights.items() if not may]
    if not missing:
        return "all that a run needs to start"
    text = f"you may not {', '.join(missing)}"
    is_roles = "create roles" in missing
    return f"{text}; runs use an account of the administrator's" if is_roles else text


def _spot(facts: ClusterFacts) -> str:
    if facts.num_nodes is None:
        return f"nodes {NOT_SEEN}"
    return "=".join(facts.spot) if facts.spot else "no machine has a label of spot machines"


def _accelerators(facts: ClusterFacts) -> Iterator[str]:
    if facts.num_nodes is None:
        yield f"nodes {NOT_SEEN}"
        return
    for group in facts.machines:
        yield _group(group)
    for family in facts.unsupported:
        yield f"{family}: Headway does not run on them"
    for name in facts.without_plugin:
        yield f"{name}: it has a GPU by its label, and no device for pods (no device plugin?)"
    if not (facts.machines or facts.unsupported or facts.without_plugin):
        yield f"none on {facts.num_nodes} nodes"
    if facts.pool_machines:
        named = ", ".join(facts.pool_machines[:MOST_POOLS])
        more = f" and {len(facts.pool_machines) - MOST_POOLS} more"
        yield f"Karpenter can make {named}" + more * (len(facts.pool_machines) > MOST_POOLS)


def _group(group: MachineGroup) -> str:
    all_of_them = group.num_nodes * group.accelerators.count
    free = "" if group.num_free is None else f", {group.num_free} of {all_of_them} free"
    nodes = "node" if group.num_nodes == 1 else "nodes"
    return f"{group.name}: {group.num_nodes} {nodes} with {group.accelerators}{free}"


def _cpu(facts: ClusterFacts) -> str:
    room = facts.cpu_room
    if room is not None:
        has = f"{room.cores:.1f} cores and {byte_size(room.memory_bytes)}"
        free = "free" if room.is_free else "(what is free may not be seen)"
        whose = "1 node with" if room.num_nodes == 1 else f"{room.num_nodes} nodes; most have"
        return f"{whose} {has} {free}"
    limits = [f"{whose}: {_amount(name, most)}" for name, (most, whose) in facts.limits.items()]
    if facts.num_nodes is not None:
        return "none takes pods without a toleration"
    return f"nodes {NOT_SEEN}" + "".join(f"; {text}" for text in limits)


def _amount(resource: str, most: float) -> str:
    return f"{most:g} cores" if resource == "cpu" else byte_size(int(most))


def _claims(facts: ClusterFacts) -> str:
    if not facts.claims:
        return "none"
    return "; ".join(
        f"{one.name} ({', '.join(one.modes)}{'' if one.is_bound else ', not bound'})"
        for one in facts.claims
    )


def _classes(facts: ClusterFacts) -> str:
    if facts.num_classes is None:
        return f"storage classes {NOT_SEEN}"
    if facts.num_classes == 0:
        return "none"
    shared = ", ".join(facts.shared_classes)
    return f"{facts.num_classes}; for claims of many machines: {shared or 'none that is known'}"


def _images(facts: ClusterFacts) -> Iterator[str]:
    """Also where pods pull from."""
    registries = sorted({_registry(one.reference) for one in facts.images})
    if not registries:
        yield "no pod in the namespace shows where images are pulled from"
        return
    yield f"pods of the namespace pull from {', '.join(registries)}"


def _registry(reference: str) -> str:
    first, slash, _ = reference.partition("/")
    is_host = slash and ("." in first or ":" in first or first == "localhost")
    return first if is_host else "docker.io"
