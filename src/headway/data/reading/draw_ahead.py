"""An order that draws the next positions along with the requested ones."""

from __future__ import annotations

import numpy as np

from headway.data.reading.sample_set import SampleOrder

MOST_POSITIONS = 256
"""Limit of positions to draw at once. Drawing this many usually takes no longer than drawing one:
0.9 ms of small numpy calls, which hold the GIL and so delay training even from another thread."""


class DrawAheadOrder:
    """Wraps an order and answers from memory where possible. Thread-safe."""

    def __init__(self, order: SampleOrder) -> None:
        self._order = order
        empty = np.empty(0, dtype=np.int64)
        self._drawn = (0, empty, empty)

    def at(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(epochs, samples) at the positions first .. first + count - 1."""
        begin, epochs, samples = self._drawn
        end = begin + len(samples)
        if not begin <= first <= end - count:
            # Twice as many as before while moving forward; after a jump, just what is requested.
            goes_forward = begin < first <= end + MOST_POSITIONS
            ahead = min(MOST_POSITIONS, 2 * len(samples)) if goes_forward else 0
            begin = first
            epochs, samples = self._order.at(first, max(count, ahead))
            self._drawn = (begin, epochs, samples)
        here = slice(first - begin, first - begin + count)
        return epochs[here], samples[here]
