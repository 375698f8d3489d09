"""Which sample is at which position: a keyed order in O(1) time and memory.

Nothing is shuffled in advance and nothing is stored: the sample at a position is computed from
(seed, position), so a resume needs one integer, and any member can compute any part of any batch.

The order has two levels, so that reads stay large on every kind of storage:

    epoch     blocks 0..B-1 in keyed order     | 7 2 9 | 0 5 3 | 8 1 6 | 4 |
    window    samples of a few neighbouring slots of that row, mixed together in keyed order

A set that grows while a run reads it is ordered in consecutive sections, each like a separate
epoch, so nothing depends on samples that do not exist yet.

THE VALUES ARE A FROZEN CONTRACT. Any change below that alters a single value breaks the resume of
every existing run; `tests/unit/data/test_order.py` holds golden values.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

NUM_ROUNDS = 16
"""Rounds of the network: half change the left digit, half the right one. 8 would do for large
domains, but on a handful of values each round is a weak step: over 500,000 keys, the permutations
of 5 values were visibly non-uniform with 8 and 12 rounds, and uniform with 16."""


def mix64(values: np.ndarray) -> np.ndarray:
    """A full-avalanche bijection of uint64 (Stafford's variant 13, the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def derive_keys(purpose: str, *numbers: int, count: int) -> np.ndarray:
    """`count` independent uint64 keys from a purpose and any integers, by BLAKE2b.

    The numbers are hashed as decimal text between slashes: unambiguous for integers of any size.
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
    about its square root, so walking on from a value outside costs next to nothing.
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
        # Two passes, each preceded by a key: one pass of a fixed mixer over (digit ^ key) would
        # give related rounds for keys that differ in few bits.
        before, between = self._keys[number]
        return mix64(mix64(digit ^ before) + between)


@dataclass(frozen=True)
class Window:
    """A range of consecutive positions, and the samples that are mixed over them."""

    first_position: int
    end_position: int
    """The first position of the next window."""
    samples: tuple[tuple[int, int], ...]
    """Sample numbers [start, end) of each block, in the order of the row of blocks."""


@dataclass(frozen=True)
class Order:
    """The order of `num_samples` samples, epoch after epoch, without end."""

    seed: int
    num_samples: int
    samples_per_block: int
    """Samples in a block. The last block of the set or of a section may be shorter."""
    window_blocks: int
    samples_per_section: int | None = None
    """Samples in a section. None: an epoch is mixed as a whole. Otherwise, an epoch is a sequence
    of sections, each mixed separately; within an epoch, a full section does not depend on
    `num_samples`. The last one may be shorter."""

    def __post_init__(self) -> None:
        assert self.num_samples >= 1, "an order needs at least one sample"
        assert self.samples_per_block >= 1
        assert self.window_blocks >= 1
        assert self.samples_per_section is None or self.samples_per_section >= 1

    def at(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(epochs, samples), both int64, at the positions first .. first + count - 1.

        Position p is index p % num_samples of epoch p // num_samples; a batch may straddle epochs
        and sections.
        """
        assert first >= 0
        assert count >= 0
        return self.draw(np.arange(first, first + count, dtype=np.int64))

    def draw(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(epochs, samples), both int64, at these ascending positions."""
        epochs, indices = np.divmod(positions, np.int64(self.num_samples))
        samples = np.empty_like(indices)
        for epoch, here in _runs(epochs):
            samples[here] = self._in_epoch(epoch, indices[here])
        return epochs, samples

    def window_at(self, position: int) -> Window:
        """The window from which the sample at this position is drawn; it ends with its section.

        Takes time proportional to the window's blocks. `window_at(window.end_position)` is the next
        one.
        """
        assert position >= 0
        epoch, index = divmod(position, self.num_samples)
        section, inside = divmod(index, self._full_section)
        start, end, ranges = self._stretch(epoch, section).window(inside)
        first_sample = section * self._full_section
        first_position = position - inside
        return Window(
            first_position + start,
            first_position + end,
            tuple((first_sample + low, first_sample + high) for low, high in ranges),
        )

    def _in_epoch(self, epoch: int, indices: np.ndarray) -> np.ndarray:
        """The samples at these indices of one epoch."""
        samples = np.empty_like(indices)
        for section, here in _runs(indices // self._full_section):
            # A section starts at the same number among the samples and among the indices.
            first = section * self._full_section
            stretch = self._stretch(epoch, section)
            samples[here] = stretch.samples(indices[here] - first) + first
        return samples

    @property
    def _full_section(self) -> int:
        return min(self.samples_per_section or self.num_samples, self.num_samples)

    def _stretch(self, epoch: int, section: int) -> _Stretch:
        size = min(self._full_section, self.num_samples - section * self._full_section)
        shape = (size, self.samples_per_block, self.window_blocks)
        if self.samples_per_section is None:
            return _Stretch(*shape, "order/1", self.seed, epoch)
        return _Stretch(*shape, "order/1/section", self.seed, epoch, section)


class _Stretch:
    """Samples 0 .. num_samples - 1 in a two-level keyed order: an epoch, or a section of one.

    All blocks hold `block` samples except the last, which holds `missing` fewer. Everything below
    is the arithmetic of full blocks, with `missing` added or subtracted after the short one.
    """

    def __init__(
        self, num_samples: int, samples_per_block: int, window_blocks: int, purpose: str, *key: int
    ) -> None:
        self._purpose, self._key = purpose, key
        self._num_samples = num_samples
        # Clamping both to the actual size changes no value and keeps products within int64.
        self._block = min(samples_per_block, num_samples)
        self._num_blocks = -(-num_samples // self._block)
        self._window = min(window_blocks, self._num_blocks)
        self._full = self._window * self._block  # samples in a window of full blocks
        self._missing = self._num_blocks * self._block - num_samples

        self._blocks = Permutation(self._num_blocks, f"{purpose}/blocks", *key)
        short_slot = int(self._blocks.inverse(np.array([self._num_blocks - 1]))[0])
        self._short_window, self._short_place = divmod(short_slot, self._window)

    def samples(self, indices: np.ndarray) -> np.ndarray:
        """The samples at these ascending indices."""
        places = np.empty_like(indices)  # in the row of blocks, as if all of them were full
        for number, here in _runs(self._window_numbers(indices)):
            start, end = self._bounds(number)
            inside = Permutation(end - start, f"{self._purpose}/window", *self._key, number)
            place = inside.forward(indices[here] - start)
            if number == self._short_window:
                beyond = place >= (self._short_place + 1) * self._block - self._missing
                place = np.where(beyond, place + self._missing, place)
            places[here] = place + number * self._full
        slots, offsets = np.divmod(places, self._block)
        return self._blocks.forward(slots) * self._block + offsets

    def window(self, index: int) -> tuple[int, int, list[tuple[int, int]]]:
        """The indices [start, end) of the window around an index, and the samples of its blocks."""
        number = int(self._window_numbers(np.array([index]))[0])
        first_slot = number * self._window
        slots = np.arange(first_slot, first_slot + self._num_slots(number))
        firsts = (self._blocks.forward(slots) * self._block).tolist()
        ranges = [(first, min(first + self._block, self._num_samples)) for first in firsts]
        return *self._bounds(number), ranges

    def _window_numbers(self, indices: np.ndarray) -> np.ndarray:
        short_end = self._bounds(self._short_window)[1]
        return np.where(indices < short_end, indices, indices + self._missing) // self._full

    def _bounds(self, number: int) -> tuple[int, int]:
        """The indices [start, end) of a window."""
        start = number * self._full - (self._missing if number > self._short_window else 0)
        lacking = self._missing if number == self._short_window else 0
        return start, start + self._num_slots(number) * self._block - lacking

    def _num_slots(self, number: int) -> int:
        """Number of blocks in a window: the last one may have fewer."""
        return min(self._window, self._num_blocks - number * self._window)


def _runs(numbers: np.ndarray) -> Iterator[tuple[int, slice]]:
    """Each distinct value of an ascending array, and the slice where it occurs."""
    values, starts = np.unique(numbers, return_index=True)
    bounds = [*starts.tolist(), len(numbers)]
    for value, (start, end) in zip(values.tolist(), itertools.pairwise(bounds), strict=True):
        yield value, slice(start, end)
