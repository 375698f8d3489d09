"""The ranks that hold one copy of the model together, on groups that last as long as their
processes: neither a new generation nor a loss elsewhere shuts them.

So what they agree on reaches all of them or none, unless one of them dies, and then their domain is
lost as a whole. Every agreement carries the generation it belongs to. A rank that has left that
generation already takes part all the same, with its next one: both notice, and meet again.
"""

from __future__ import annotations

import torch

from headway.errors import PeerLost
from headway.train.peers import Peers

VALUES = 14
"""Room in an agreement: all have the same size, so that any two can meet."""


class Mates:
    def __init__(self, data: Peers, control: Peers, generation: int) -> None:
        """`data` is for tensors on the device, `control` for agreements, on the host."""
        self._data, self._control, self._generation = data, control, generation

    def add_up(self, tensor: torch.Tensor) -> None:
        """COLLECTIVE. The tensor becomes its sum over the domain."""
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
    They enter it once all say the same. 0: one that is not here yet."""
    return [max(0, -stamp) for stamp, *_ in _exchange(control, -generation, [])]


def _exchange(control: Peers, stamp: int, values: list[int]) -> list[list[int]]:
    assert len(values) <= VALUES
    padded = [stamp, *values, *[0] * (VALUES - len(values))]
    parts = control.gather(torch.tensor(padded, dtype=torch.int64))
    return [part.tolist() for part in parts]
