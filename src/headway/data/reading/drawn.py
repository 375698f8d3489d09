"""An order whose next positions are drawn along with those that are asked for."""

from __future__ import annotations

import numpy as np

from headway.data.reading.sets import SampleOrder

POSITIONS = 256
"""Drawing so many takes no longer than drawing one: 0.9 ms of small numpy calls, which hold the
interpreter's lock and so hold up training also from another thread."""


class DrawnAhead:
    """What an order says, from memory where that is possible. For any thread."""

    def __init__(self, order: SampleOrder) -> None:
        self._order = order
        empty = np.empty(0, dtype=np.int64)
        self._drawn = (0, empty, empty)

    def at(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(epochs, samples) of the positions first .. first + count - 1."""
        begin, epochs, samples = self._drawn
        if not begin <= first <= begin + len(samples) - count:
            begin = first
            epochs, samples = self._order.at(first, max(count, POSITIONS))
            self._drawn = (begin, epochs, samples)
        here = slice(first - begin, first - begin + count)
        return epochs[here], samples[here]
