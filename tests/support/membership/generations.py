"""What follows from a generation, and from what its members know of the next one."""

from __future__ import annotations

from collections.abc import Sequence

from headway.member.protocol.generation import Generation


def restores(generation: Generation) -> bool:
    """Whether nobody is known to hold the state: unless somebody does, it comes from the newest
    checkpoint."""
    return not any(domain.holds for domain in generation.domains)


def enters_next(entered: int, seen: Sequence[int]) -> bool:
    """Whether all members know the same newer generation, which each of them finds from a step's
    all-reduce: so they all enter it together. `seen`: by member."""
    return min(seen) == max(seen) > entered
