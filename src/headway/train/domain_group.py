"""Collectives between the ranks of one failure domain, which hold one copy of the model together.
Their process groups last as long as their processes: neither a new generation nor a loss in another
domain shuts them.

So an agreement reaches all ranks or none, unless one of them dies, and then the domain is lost as a
whole. Every exchange carries its generation: where one rank has left a generation and another is
still in it, both notice, and they agree on the next one before they enter it. An exchange that
fails or is abandoned is final: the ranks no longer know each other's state, and all of them
restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headway.errors import PeerLost
from headway.train.collectives import WorkerGroup

VALUES = 14
"""Integers in an exchange. All have the same size, so that any two match as one collective."""


class DomainLost(PeerLost):
    """A collective inside the domain failed, or was abandoned because the domain was removed from
    the run. Its process groups are unusable, and its processes have to restart."""


class DomainGroup:
    def __init__(self, data: WorkerGroup, control: WorkerGroup, generation: int) -> None:
        """`data` is for tensors on the device, `control` for agreements, on the host."""
        self._data, self._control, self._generation = data, control, generation

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """COLLECTIVE. The tensor becomes its sum over the domain."""
        with _raising_domain_lost():
            self._data.all_reduce(tensor)

    def all_gather(self, values: list[int]) -> list[list[int]]:
        """COLLECTIVE. The values of all ranks, by rank. Raises PeerLost on all of them if one has
        left the generation."""
        gathered = _exchange(self._control, self._generation, values)
        if any(stamp != self._generation for stamp, *_ in gathered):
            raise PeerLost("another rank of this domain has left the generation")
        return [found[: len(values)] for _, *found in gathered]


def wanted_generations(control: WorkerGroup, generation: int) -> list[int]:
    """COLLECTIVE. The generation that each rank wants to enter, by rank; 0 for a rank that is still
    in an earlier one. They enter it once all want the same."""
    return [max(0, -stamp) for stamp, *_ in _exchange(control, -generation, [])]


def _exchange(control: WorkerGroup, stamp: int, values: list[int]) -> list[list[int]]:
    assert len(values) <= VALUES
    padded = [stamp, *values, *[0] * (VALUES - len(values))]
    with _raising_domain_lost():
        parts = control.all_gather(torch.tensor(padded, dtype=torch.int64))
    return [part.tolist() for part in parts]


@contextmanager
def _raising_domain_lost() -> Iterator[None]:
    words = None
    try:
        yield
    except PeerLost as lost:
        words = lost.message
    if words is not None:
        raise DomainLost(f"a rank of this failure domain was lost: {words}")
