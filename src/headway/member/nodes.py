"""Which nodes are there as a whole, and the domains that can be made of them.

The name of a pod is NODE/RANK and whatever tells it from others; one without "/" is its own node.
Whoever starts the processes of a node anew gives the node a new name: a process that is left over
from before belongs to none of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

GONE = "gone"
"""What a coordinator is told on its stdin, with a place: those who were in it are replaced."""


class Node(NamedTuple):
    """Fields in the order by which nodes are taken."""

    ready: float
    """Since when all of its pods could train."""
    name: str
    pods: tuple[str, ...]
    """In the order of their ranks."""


def node_of(pod: str) -> str:
    return pod.partition("/")[0]


def place_of(pod: str) -> str:
    """What stays when workers are started again: NAME of NAME.START/RANK."""
    return node_of(pod).rpartition(".")[0]


def seat_of(pod: str) -> tuple[str, int]:
    """NAME/RANK of NAME.START/RANK, and START. Of two who were started for the same seat the older
    one has ended."""
    named = re.match(r"(.+)\.(\d+)/(\d+)", pod)
    return (f"{named[1]}/{named[3]}", int(named[2])) if named else (pod, 0)


def whole_nodes(pods: Iterable[tuple[float, str]], node_pods: int) -> list[Node]:
    """Of pods and since when they could train: the nodes that have as many as belong to one,
    neither more nor less, the longest ready first. If that is one, every pod counts for itself."""
    if node_pods == 1:
        return [Node(ready, name, (name,)) for ready, name in sorted(pods)]
    nodes = defaultdict(list)
    for ready, name in pods:
        nodes[node_of(name)].append((ready, name))
    return sorted(
        Node(max(some)[0], name, tuple(sorted((pod for _, pod in some), key=_rank)))
        for name, some in nodes.items()
        if len(some) == node_pods
    )


def domains_of(nodes: Sequence[Node], domain_pods: int) -> list[tuple[str, ...]]:
    """As many as there are pods for. `domain_pods` is a multiple of a node's."""
    pods = [pod for node in nodes for pod in node.pods]
    ends = range(domain_pods, len(pods) + 1, domain_pods)
    return [tuple(pods[end - domain_pods : end]) for end in ends]


def _rank(pod: str) -> tuple[int, str]:
    """By number: rank 10 comes after rank 9."""
    digits = re.match("[0-9]*", pod.partition("/")[2])
    return int(digits[0]) if digits and digits[0] else 0, pod
