"""Nodes whose workers are all ready, and the domains that can be made of them.

A node here is one start of a node: a process that is left over from an earlier start belongs to
none of the new ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headway.member.protocol.identity import parse

GONE = "gone"
"""Order on the coordinator's stdin, followed by a node: its workers have been replaced."""


class Node(NamedTuple):
    """Fields in the order by which nodes are sorted."""

    ready: float
    """Since when all of its workers are ready."""
    name: str
    workers: tuple[str, ...]
    """In the order of their ranks."""


def whole_nodes(workers: Iterable[tuple[float, str]], node_workers: int) -> list[Node]:
    """From workers and since when each is ready: nodes that have exactly `node_workers` of them,
    the longest ready first. If that is 1, each worker is a node, whatever its name."""
    if node_workers == 1:
        return [Node(ready, name, (name,)) for ready, name in sorted(workers)]
    nodes = defaultdict(list)
    for ready, name in workers:
        nodes[parse(name).node_start].append((ready, name))
    return sorted(
        Node(max(some)[0], name, tuple(sorted((worker for _, worker in some), key=_rank)))
        for name, some in nodes.items()
        if len(some) == node_workers
    )


def domains_of(nodes: Sequence[Node], domain_workers: int) -> list[tuple[str, ...]]:
    """As many domains as there are workers for. `domain_workers` is a multiple of a node's."""
    workers = [worker for node in nodes for worker in node.workers]
    ends = range(domain_workers, len(workers) + 1, domain_workers)
    return [tuple(workers[end - domain_workers : end]) for end in ends]


def _rank(worker: str) -> tuple[int, str]:
    return parse(worker).local_rank, worker
