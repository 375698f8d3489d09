"""The ranks that hold one copy of the model together, on groups that last as long as their
processes: neither a new generation nor a loss elsewhere shuts them.

So what they agree on reaches all of them or none, unless one of them dies, and then their domain is
lost as a whole. Every exchange carries its generation: where one rank has left a generation and
another is still in it, both notice, and meet again before they enter the next. An exchange that
fails or is given up is final: the ranks no longer know what the others have, and all start again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headway.errors import PeerLost
from headway.train.peers import Peers

VALUES = 14
"""Room in an agreement: all have the same size, so that any two can meet."""


class DomainLost(PeerLost):
    """A collective with the other ranks of the domain failed, or was given up because the domain is
    out of the run. Their groups are of no more use, and the processes have to start again."""


class Mates:
    def __init__(self, data: Peers, control: Peers, generation: int) -> None:
        """`data` is for tensors on the device, `control` for agreements, on the host."""
        self._data, self._control, self._generation = data, control, generation

    def add_up(self, tensor: torch.Tensor) -> None:
        """COLLECTIVE. The tensor becomes its sum over the domain."""
        with _final_losses():
            self._data.add_up(tensor)

    def gather(self, values: list[int]) -> list[list[int]]:
        """COLLECTIVE. Everyone's values, by rank. Raises PeerLost on all ranks if one of them has
        left the generation."""
        gathered = _exchange(self._control, self._generation, values)
        if any(stamp != self._generation for stamp, *_ in gathered):
            raise PeerLost("another rank of this domain has left the generation")
        return [found[: len(values)] for _, *found in gathered]


def meet(control: Peers, generation: int) -> list[int]:
    """COLLECTIVE. Before a generation is entered: the one that each rank wants to enter, by rank.
    They enter it once all say the same. 0: a rank that is still in an earlier one."""
    return [max(0, -stamp) for stamp, *_ in _exchange(control, -generation, [])]


def _exchange(control: Peers, stamp: int, values: list[int]) -> list[list[int]]:
    assert len(values) <= VALUES
    padded = [stamp, *values, *[0] * (VALUES - len(values))]
    with _final_losses():
        parts = control.gather(torch.tensor(padded, dtype=torch.int64))
    return [part.tolist() for part in parts]


@contextmanager
def _final_losses() -> Iterator[None]:
    words = None
    try:
        yield
    except PeerLost as lost:
        words = lost.message
    if words is not None:
        raise DomainLost(f"the ranks of this domain have lost each other: {words}")
