"""`make bench-order`: does the order look like chance over DRAWS=10000000 draws for each test?

Each test gives a p-value (tests/support/statistics.py): how likely chance is to look as odd. With
so many tests some are small, so the figure is the smallest one times their number (Bonferroni), and
it has to be 0.001 at least: an order that is chance fails once in a thousand times. The keys are
fixed, so the figure is the same on any machine. The spread is the quartiles of all p-values: around
0.25 and 0.75, the upper one higher since some stand for several that were corrected already.

Not counted but told on stderr: how evenly whole orders of a few samples come, which 16 rounds are
known not to make perfect, and the parity of seven samples (docs/decisions.md).
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator

import numpy as np

from headway.data.order import Order
from support.statistics import (
    birthday_count,
    birthdays_p,
    correlation_p,
    epochs,
    ideal_probabilities,
    listed_p,
    neighbours_p,
    permutations,
    positions_p,
    ranks_in_window,
    relative,
    row_of_blocks,
    serial_p,
)

DRAWS = int(os.environ.get("DRAWS", str(10**7)))
TARGET = 0.001
# 1 has one order only; small ones, primes, powers of two and their neighbours, squares.
SHORT = [2, 3, 5, 7, 8, 9, 16, 17, 31, 64, 65, 97, 256, 257, 1009, 1024, 1025]
LONG = [65_537, 1_000_003, 2**20, 2**20 + 1]
HUGE = [2**26 + 1, 10**10, 2**40, 10**13]

Result = tuple[str, float]


def main() -> int:
    began = time.perf_counter()
    results = []
    for name, p_value in itertools.chain(
        short_permutations(),
        long_permutations(),
        parts_of_huge_permutations(),
        two_levels(),
        large_windows(),
        short_last_block(),
        relations(),
    ):
        results.append((name, p_value))
        seconds = time.perf_counter() - began
        print(f"{seconds:6.0f} s  {p_value:9.6f}  {name}", file=sys.stderr, flush=True)
    values = [p_value for _, p_value in results]
    smallest = min(results, key=lambda result: result[1])
    figure = min(1.0, smallest[1] * len(results))
    low, _, high = statistics.quantiles(values, n=4)
    verdict = "not below" if figure >= TARGET else "BELOW"
    print(
        f"smallest of {len(results)}: {smallest[1]:.3g} ({smallest[0]}), "
        f"{verdict} the corrected threshold {TARGET / len(results):.3g}",
        file=sys.stderr,
    )
    line = {
        "name": "bench-order",
        "figure": round(figure, 6),
        "target": TARGET,
        "pass": figure >= TARGET,
        "spread": [round(low, 4), round(high, 4)],
        "smallest_p": smallest[1],
        "smallest_test": smallest[0],
        "num_tests": len(results),
        "draws_per_test": DRAWS,
    }
    print(json.dumps(line))
    return 0 if figure >= TARGET else 1


def short_permutations() -> Iterator[Result]:
    """Whole permutations under many keys; keys that follow each other are seeds and epochs."""
    for size in SHORT:
        # One more, since some tests compare each with the next.
        table = permutations(size, -(-DRAWS // size) + 1)
        yield from _mixed(f"permutation of {size}", table)
        yield f"permutation of {size}: related keys", positions_p(relative(table[:-1], table[1:]))
        yield f"permutation of {size}: correlated keys", correlation_p(table[:-1], table[1:])
        if size < 8:
            _tell_evenness(table)


def long_permutations() -> Iterator[Result]:
    """A few whole permutations; their pairs are tested with those of huge ones."""
    for size in LONG:
        table = permutations(size, -(-DRAWS // size) + 1)
        yield f"permutation of {size}: positions", positions_p(table)
        yield f"permutation of {size}: neighbours", neighbours_p(table)
        yield (
            f"permutation of {size}: related keys",
            positions_p(relative(table[:-1], table[1:])),
        )


def parts_of_huge_permutations() -> Iterator[Result]:
    for size in LONG + HUGE:
        count = birthday_count(size) // 2 * 2
        table = permutations(size, -(-DRAWS // count), count)
        yield f"part of a permutation of {size}: birthdays", birthdays_p(table, size)
        # So few of so many values that pairs are independent wherever they stand.
        yield f"part of a permutation of {size}: serial", serial_p(table.reshape(-1, 2), size)


def two_levels() -> Iterator[Result]:
    """64 blocks in windows of 16, as a whole and as two sections of two windows each."""
    for section in (None, 2048):
        orders = [Order(seed, 4096, 64, 16, section) for seed in range(-(-DRAWS // 4096))]
        name = "two levels" if section is None else "two levels in sections"
        table = epochs(orders)
        for number, part in enumerate(np.split(table, 4096 // (section or 4096), axis=1)):
            first = number * (section or 0)
            yield from _mixed(f"{name}, blocks {number}", row_of_blocks(part - first, 64))
        ranks = [
            ranks_in_window(order, at, 1024) for order in orders for at in range(0, 4096, 1024)
        ]
        yield from _mixed(f"{name}, windows", np.stack(ranks))
        # A section has its place in every epoch; only what is mixed inside it can be unrelated.
        inside, later = table % (section or 4096), epochs(orders, epoch=1) % (section or 4096)
        yield f"{name}: correlated epochs", correlation_p(inside, later)
        yield f"{name}: correlated seeds", correlation_p(inside[:-1], inside[1:])


def large_windows() -> Iterator[Result]:
    for section in (None, 2**32):
        size = 2**30
        count = birthday_count(size) // 2 * 2
        orders = (Order(seed, 2**33, 2**20, 2**10, section) for seed in range(-(-DRAWS // count)))
        # Some window in the middle of some epoch.
        table = np.stack([ranks_in_window(order, 5 * size, count) for order in orders])
        name = "large window" if section is None else "large window of a section"
        yield f"{name}: birthdays", birthdays_p(table, size)
        yield f"{name}: serial", serial_p(table.reshape(-1, 2), size)


def short_last_block() -> Iterator[Result]:
    """Ten blocks of 48 and one of 20 in windows of four, against what pure chance would draw."""
    num_samples, block, window = 500, 48, 4
    num_orders = -(-DRAWS // num_samples)
    draws = epochs(Order(seed, num_samples, block, window) for seed in range(num_orders))
    chances = ideal_probabilities(Order(0, num_samples, block, window))
    yield "short last block: positions", listed_p(draws, chances)


def relations() -> Iterator[Result]:
    """Orders of one window, where one order relative to another is a permutation like any."""
    orders = [Order(seed, 2048, 64, 16, 1024) for seed in range(-(-DRAWS // 1024))]
    first = epochs(orders)
    left, right = first[:, :1024], first[:, 1024:] - 1024
    later = np.stack([order.at(2048, 1024)[1] for order in orders])
    pairs = {
        "epochs": (left, later),
        "seeds": (left[:-1], left[1:]),
        "sections": (left, right),
    }
    for name, (one, other) in pairs.items():
        yield from _mixed(f"one order relative to another: {name}", relative(one, other))
        yield f"correlated {name}", correlation_p(one, other)


def _mixed(name: str, table: np.ndarray) -> Iterator[Result]:
    size = table.shape[1]
    yield f"{name}: positions", positions_p(table)
    yield f"{name}: serial", serial_p(table, size)
    if size > 3:
        yield f"{name}: neighbours", neighbours_p(table)


def _tell_evenness(table: np.ndarray) -> None:
    size = table.shape[1]
    left, right = np.triu_indices(size, 1)
    odd = float(((table[:, left] > table[:, right]).sum(axis=1) % 2).mean())
    _, counts = np.unique(table @ size ** np.arange(size), return_counts=True)
    expected = len(table) / math.factorial(size)
    # What chance would give is taken off: the rest is the order's own.
    excess = ((counts / expected - 1) ** 2).mean() - 1 / expected
    print(
        f"          known limit: of the {math.factorial(size)} orders of {size}, {odd:.2%} odd; "
        f"uneven by {math.sqrt(max(0.0, excess)):.2%} of their mean",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
