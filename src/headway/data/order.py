"""Which sample stands at which position: a keyed order in O(1) time and memory.

Nothing is shuffled in advance and nothing is remembered: the sample at a position is computed from
(seed, position), so a resume needs one integer and any member can compute any part of any batch.

The order has two levels, so that reads stay large on every storage:

    epoch     blocks 0..B-1 in keyed order     | 7 2 9 | 0 5 3 | 8 1 6 | 4 |
    window    samples of a few neighbouring slots of that row, mixed together in keyed order

THE VALUES ARE A FROZEN CONTRACT. A change to anything below that changes one value breaks the
resume of every run there is; `tests/unit/data/test_order.py` holds golden values.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

NUM_ROUNDS = 16
"""Half of them move the left digit, half the right one. 8 would do for large domains; on a handful
of values each round is a weak step: over 500,000 keys the permutations of 5 values were visibly
uneven with 8 and 12 rounds, and even with 16."""


def mix64(values: np.ndarray) -> np.ndarray:
    """A full-avalanche bijection of uint64 (Stafford's variant 13, the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def derive_keys(purpose: str, *numbers: int, count: int) -> np.ndarray:
    """`count` independent uint64 keys from a purpose and any integers, by BLAKE2b.

    The numbers go in as decimal text between slashes: unambiguous for integers of any size.
    """
    text = "/".join(["headway", purpose, *map(str, numbers)])
    digests = [
        hashlib.blake2b(f"{text}/{part}".encode(), digest_size=64).digest()
        for part in range(-(-count // 8))
    ]
    return np.frombuffer(b"".join(digests), dtype="<u8")[:count].astype(np.uint64)


class Permutation:
    """A keyed bijection of 0..size-1: an alternating Feistel network with cycle walking.

    A value is two digits (left of `rows`, right of `columns`), rows x columns >= size; each round
    adds a keyed hash of one digit to the other. The domain exceeds `size` by less than `rows`,
    about its square root, so walking again from a value outside costs next to nothing.
    """

    def __init__(self, size: int, purpose: str, *numbers: int) -> None:
        assert size >= 1, "a permutation needs at least one value"
        self.size = size
        root = math.isqrt(size)
        rows = root if root * root == size else root + 1
        self._rows = np.uint64(rows)
        self._columns = np.uint64(-(-size // rows))
        if size > 1:
            keys = derive_keys(purpose, *numbers, count=2 * NUM_ROUNDS)
            self._keys = keys.reshape(NUM_ROUNDS, 2)

    def forward(self, values: np.ndarray) -> np.ndarray:
        return self._walk(values, forward=True)

    def inverse(self, values: np.ndarray) -> np.ndarray:
        return self._walk(values, forward=False)

    def _walk(self, values: np.ndarray, forward: bool) -> np.ndarray:
        if self.size == 1:
            return np.zeros_like(values)
        permute = self._encrypt if forward else self._decrypt
        result = permute(values.astype(np.uint64))
        outside = np.flatnonzero(result >= self.size)
        while outside.size:
            result[outside] = permute(result[outside])
            outside = outside[result[outside] >= self.size]
        return result.astype(np.int64)

    def _encrypt(self, values: np.ndarray) -> np.ndarray:
        left, right = np.divmod(values, self._columns)
        for number in range(0, NUM_ROUNDS, 2):
            left = (left + self._hash(number, right) % self._rows) % self._rows
            right = (right + self._hash(number + 1, left) % self._columns) % self._columns
        return left * self._columns + right

    def _decrypt(self, values: np.ndarray) -> np.ndarray:
        left, right = np.divmod(values, self._columns)
        for number in reversed(range(0, NUM_ROUNDS, 2)):
            change = self._hash(number + 1, left) % self._columns
            right = (right + (self._columns - change)) % self._columns
            change = self._hash(number, right) % self._rows
            left = (left + (self._rows - change)) % self._rows
        return left * self._columns + right

    def _hash(self, number: int, digit: np.ndarray) -> np.ndarray:
        # Two passes with a key before each: one pass of a fixed mixer over (digit ^ key) would give
        # related rounds for keys that differ in few bits.
        before, between = self._keys[number]
        return mix64(mix64(digit ^ before) + between)


@dataclass(frozen=True)
class Order:
    """The order of `num_samples` samples, epoch after epoch, without end."""

    seed: int
    num_samples: int
    samples_per_block: int
    """The last block may be shorter."""
    window_blocks: int

    def __post_init__(self) -> None:
        assert self.num_samples >= 1, "an order needs at least one sample"
        assert self.samples_per_block >= 1
        assert self.window_blocks >= 1

    def at(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(epochs, samples), both int64, of the positions first .. first + count - 1.

        Position p is index p % num_samples of epoch p // num_samples; a batch may straddle epochs.
        """
        assert first >= 0
        assert count >= 0
        positions = np.arange(first, first + count, dtype=np.int64)
        epochs, indices = np.divmod(positions, np.int64(self.num_samples))
        samples = np.empty_like(indices)
        for epoch, here in _runs(epochs):
            samples[here] = self._in_epoch(epoch, indices[here])
        return epochs, samples

    def _in_epoch(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """The samples at these indices of one epoch.

        All blocks hold `block` samples but the last, which holds `missing` fewer. Everything below
        is the arithmetic of full blocks, with `missing` put in or taken out beyond the short one.
        """
        # Both are cut to what there is, which changes no value and keeps products within int64.
        block = min(self.samples_per_block, self.num_samples)
        num_blocks = -(-self.num_samples // block)
        window = min(self.window_blocks, num_blocks)
        missing = num_blocks * block - self.num_samples

        blocks = Permutation(num_blocks, "order/1/blocks", self.seed, epoch)
        short_slot = int(blocks.inverse(np.array([num_blocks - 1]))[0])
        short_window, short_place = divmod(short_slot, window)

        full = window * block  # samples in a window of full blocks
        num_slots = min(window, num_blocks - short_window * window)
        short_end = short_window * full + num_slots * block - missing
        windows = np.where(indices < short_end, indices, indices + missing) // full
        places = np.empty_like(indices)  # in the row of blocks, as if all of them were full
        for number, here in _runs(windows):
            start = number * full - (missing if number > short_window else 0)
            num_slots = min(window, num_blocks - number * window)
            size = num_slots * block - (missing if number == short_window else 0)
            inside = Permutation(size, "order/1/window", self.seed, epoch, number)
            place = inside.forward(indices[here] - start)
            if number == short_window:
                beyond = place >= (short_place + 1) * block - missing
                place = np.where(beyond, place + missing, place)
            places[here] = place + number * full
        slots, offsets = np.divmod(places, block)
        return blocks.forward(slots) * block + offsets


def _runs(numbers: np.ndarray) -> Iterator[tuple[int, slice]]:
    """Each distinct value of an ascending array, and where it stands."""
    values, starts = np.unique(numbers, return_index=True)
    bounds = [*starts.tolist(), len(numbers)]
    for value, (start, end) in zip(values.tolist(), itertools.pairwise(bounds), strict=True):
        yield value, slice(start, end)
