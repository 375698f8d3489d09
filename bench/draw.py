"""`make bench-draw`: the time to draw one batch must not grow with the data.

Draws 512 sequence numbers out of virtual sets of 10^6 to 10^13 tokens (nothing is stored: an order
is arithmetic). Sizes take turns, so that other load on the machine affects all of them. The figure
is the median time at 10^13 tokens over that at 10^8, where a set begins to have more than one
window; below, batches often straddle epochs. Its spread is the quartiles of that ratio over rounds.
It may be below 1: with few blocks the permutation's domain exceeds them by a larger share, so more
values are drawn a second time. Every size is reported with median, quartiles and peak memory.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import tracemalloc

from headway.data.order import Order

DRAWS = int(os.environ.get("DRAWS", "300"))
WARMUP = 5
TARGET = 1.5
BATCH = 512
LENGTH = 1024
BLOCK_TOKENS, WINDOW_BLOCKS = 2**20, 64
EXPONENTS = range(6, 14)


def main() -> int:
    orders = {exponent: _order(10**exponent) for exponent in EXPONENTS}
    seconds: dict[int, list[float]] = {exponent: [] for exponent in EXPONENTS}
    for turn in range(-WARMUP, DRAWS):
        for exponent, order in orders.items():
            took = _draw_seconds(order, turn + WARMUP)
            if turn >= 0:
                seconds[exponent].append(took)
    peaks = {exponent: _peak_bytes(order) for exponent, order in orders.items()}
    medians = {exponent: statistics.median(seconds[exponent]) for exponent in EXPONENTS}
    for exponent in EXPONENTS:
        low, _, high = statistics.quantiles(seconds[exponent], n=4)
        print(
            f"10^{exponent} tokens: {1e3 * medians[exponent]:.3f} ms "
            f"({1e3 * low:.3f} to {1e3 * high:.3f}), {peaks[exponent] / 1024:.0f} KiB",
            file=sys.stderr,
        )
    ratios = [large / small for large, small in zip(seconds[13], seconds[8], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    figure = medians[13] / medians[8]
    line = {
        "name": "draw",
        "figure": round(figure, 3),
        "target": TARGET,
        "pass": figure <= TARGET,
        "spread": [round(low, 3), round(high, 3)],
        "median_milliseconds": {f"1e{e}": round(1e3 * medians[e], 3) for e in EXPONENTS},
        "peak_bytes": {f"1e{e}": peaks[e] for e in EXPONENTS},
        "ratio_to_1e6": round(medians[13] / medians[6], 3),
        "draws": DRAWS,
    }
    print(json.dumps(line))
    return 0 if figure <= TARGET else 1


def _order(num_tokens: int) -> Order:
    # Each sample needs its targets too, one token further.
    return Order(17, (num_tokens - 1) // LENGTH, BLOCK_TOKENS // LENGTH, WINDOW_BLOCKS)


def _draw_seconds(order: Order, turn: int) -> float:
    """Batches from all over the first epochs: places far from each other share nothing."""
    first = turn * 7_919 * BATCH % (10 * order.num_samples)
    began = time.perf_counter()
    order.at(first, BATCH)
    return time.perf_counter() - began


def _peak_bytes(order: Order) -> int:
    tracemalloc.start()
    order.at(3 * BATCH, BATCH)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


if __name__ == "__main__":
    sys.exit(main())
