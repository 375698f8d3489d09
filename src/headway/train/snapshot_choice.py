"""From which snapshot in the nodes' memory a run resumes, and who has which part of it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Name = tuple[int, int]
"""Of a state: its step, and the generation that committed it."""


@dataclass(frozen=True)
class HeldPart:
    """A part of a snapshot that is complete in the memory of a node."""

    name: Name
    part: int
    """Rank that made it."""
    num_parts: int
    """Ranks that held the model together then."""


@dataclass(frozen=True)
class WholeSnapshot:
    """A snapshot of which every part has a holder."""

    name: Name
    holders: tuple[int, ...]
    """Rank that serves it, by part. The parts are divided evenly where there is a choice."""


def whole_snapshots(held: Sequence[Sequence[HeldPart]]) -> list[WholeSnapshot]:
    """Newest first, of what each rank holds, by rank. Two snapshots of one name with another number
    of parts are two snapshots: one generation has one number of members."""
    holders: dict[tuple[Name, int], dict[int, list[int]]] = {}
    for rank, parts in enumerate(held):
        for one in parts:
            by_part = holders.setdefault((one.name, one.num_parts), {})
            by_part.setdefault(one.part, []).append(rank)
    whole = []
    for (name, num_parts), by_part in sorted(holders.items(), reverse=True):
        if all(part in by_part for part in range(num_parts)):
            whole.append(WholeSnapshot(name, _divided([by_part[n] for n in range(num_parts)])))
    return whole


def _divided(candidates: list[list[int]]) -> tuple[int, ...]:
    """One of the candidates for each part, always the one that has the fewest so far."""
    load: dict[int, int] = {}
    chosen = []
    for ranks in candidates:
        rank = min(ranks, key=lambda one: (load.get(one, 0), one))
        load[rank] = load.get(rank, 0) + 1
        chosen.append(rank)
    return tuple(chosen)


def neighbour(rank: int, num_ranks: int, ranks_per_node: int) -> int:
    """The rank whose part this one keeps: of the same device of the node before. Its own, if there
    is one node."""
    return (rank - ranks_per_node) % num_ranks
