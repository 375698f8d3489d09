"""Which member of a mixture each position belongs to.

    position   0 1 2 3 4 5 6 7 | 8 9 ...      a table of 2^16 slots, over and over (here 8)
    slot       0 1 2 3 4 5 6 7 | 0 1 ...
    member     a a b a c a b a | a a ...      divided by weight, each member spread evenly
    index      0 1 0 2 0 3 1 4 | 5 6 ...      in the member's own order, which never jumps

Nothing is stored: member and index follow from the position, and the sample from the member's own
`Order` at that index, so a resume still needs just one integer.

THE VALUES ARE A FROZEN CONTRACT, like those of the order: the division of the table
(`mixture_shares.py`), its arrangement and the members' keys;
`tests/unit/data/reading/test_mixture.py` holds golden values.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from headway.data.order import Order, derive_keys
from headway.data.reading.growing_set import GrowingOrder


def arrange_slots(slots: Sequence[int]) -> np.ndarray:
    """The member at each slot: the first n slots hold nearly n * share of every member.

    Tijdeman's algorithm ("The chairman assignment problem", 1980). With m members and e = 1 / (2m -
    2), occurrence j of a member with share s (j = 0, 1, ...) may be placed at the n-th slot only if
    (j + e) / s <= n, and it is due at (j + 1 - e) / s: around (j + 1/2) / s. Of the eligible ones,
    the one due first is taken. Tijdeman proves that none is late, so after any n slots no member is
    more than 1 - e away from n * share, and in any stretch, even across the end of the table, less
    than 2. Placing every occurrence as near as possible to (j + 1/2) / s looks simpler, but a
    hundred members of equal weight beside a large one would all fall on the same places: a hundred
    slots in a row without the large one.
    """
    size, num_members = sum(slots), len(slots)
    if num_members == 1:
        return np.zeros(size, dtype=np.int32)
    parts = 2 * (num_members - 1)  # 1 / e: everything below is an integer multiple of e
    table: list[int] = []
    waiting = [(-(-size // (parts * count)), number, 0) for number, count in enumerate(slots)]
    heapq.heapify(waiting)
    ready: list[tuple[int, int, int]] = []
    for place in range(1, size + 1):
        while waiting and waiting[0][0] <= place:
            _, number, turn = heapq.heappop(waiting)
            # Two different fractions with denominators up to 2^16 differ by at least 2^-32: in
            # whole 2^-32ths their order is exact, and ties are broken by the member's number.
            due = ((parts * (turn + 1) - 1) << 32) // slots[number]
            heapq.heappush(ready, (due, number, turn))
        _, number, turn = heapq.heappop(ready)
        table.append(number)
        if turn + 1 < slots[number]:
            may_from = -(-(parts * (turn + 1) + 1) * size // (parts * slots[number]))
            heapq.heappush(waiting, (may_from, number, turn + 1))
    return np.array(table, dtype=np.int32)


class SlotTable:
    """The member at every position, and its index."""

    def __init__(self, slots: Sequence[int]) -> None:
        self.slots = np.array(slots, dtype=np.int64)
        self.size = int(self.slots.sum())
        self._members = arrange_slots(slots)
        starts = np.cumsum(self.slots) - self.slots
        # All slots of the first member, then all of the second, ...
        self._by_member = np.argsort(self._members, kind="stable")
        self._starts = starts
        self._turns = np.empty(self.size, dtype=np.int64)
        self._turns[self._by_member] = np.arange(self.size) - np.repeat(starts, self.slots)

    def at(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(members, indices in their own orders), both int64, at `count` positions from `first`."""
        assert first >= 0
        assert count >= 0
        return self.draw(np.arange(first, first + count, dtype=np.int64))

    def draw(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same at any positions."""
        cycles, places = np.divmod(positions, np.int64(self.size))
        members = self._members[places].astype(np.int64)
        return members, cycles * self.slots[members] + self._turns[places]

    def counts(self, num_positions: int) -> list[int]:
        """How often each member occurs in the first `num_positions` positions."""
        cycles, places = divmod(num_positions, self.size)
        begun = np.bincount(self._members[:places], minlength=len(self.slots))
        return (cycles * self.slots + begun).tolist()

    def position(self, member: int, index: int) -> int:
        """The position of an index of a member's own order."""
        cycle, turn = divmod(index, int(self.slots[member]))
        return cycle * self.size + int(self._by_member[self._starts[member] + turn])


@dataclass(frozen=True)
class MixtureOrder:
    """The order of a mixture, without end. Each member has its own epochs."""

    table: SlotTable
    orders: tuple[Order | GrowingOrder, ...]
    offsets: tuple[int, ...]
    """Offset of each member's samples among those of the mixture."""

    def at(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(epochs, samples), both int64, at the positions first .. first + count - 1.

        Epochs are the member's own: a sample is masked differently each time it occurs.
        """
        members, indices = self.table.at(first, count)
        epochs, samples = np.empty_like(indices), np.empty_like(indices)
        for number, here in group_by_value(members):
            # Consecutive positions hold consecutive indices of each member.
            epochs[here], own = self.orders[number].at(int(indices[here[0]]), len(here))
            samples[here] = own + self.offsets[number]
        return epochs, samples


def member_seed(seed: int, number: int) -> int:
    """The key of a member's own order: 64 bits from the run's seed and the member's number.

    By number, not by digest, so that two copies of the same set are not read in lockstep; and
    members of equal length have unrelated orders.
    """
    return int(derive_keys("mixture/1/member", seed, number, count=1)[0])


def group_by_value(numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each distinct value, and the indices where it occurs, ascending."""
    by_value = np.argsort(numbers, kind="stable")
    values, starts = np.unique(numbers[by_value], return_index=True)
    bounds = [*starts.tolist(), len(numbers)]
    for value, (start, end) in zip(values.tolist(), itertools.pairwise(bounds), strict=True):
        yield value, by_value[start:end]
