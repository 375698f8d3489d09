"""An order whose next positions are drawn along with those that are asked for."""

from __future__ import annotations

import numpy as np

from headway.data.reading.sets import SampleOrder

MOST_POSITIONS = 256
"""Drawing so many mostly takes no longer than drawing one: 0.9 ms of small numpy calls, which hold
the interpreter's lock and so hold up training also from another thread."""


class DrawnAhead:
    """What an order says, from memory where that is possible. For any thread."""

    def __init__(self, order: SampleOrder) -> None:
        self._order = order
        empty = np.empty(0, dtype=np.int64)
        self._drawn = (0, empty, empty)

    def at(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(epochs, samples) of the positions first .. first + count - 1."""
        begin, epochs, samples = self._drawn
        end = begin + len(samples)
        if not begin <= first <= end - count:
            # Twice as many as before while it goes forward: one who jumps gets what he asks for.
            goes_forward = begin < first <= end + MOST_POSITIONS
            ahead = min(MOST_POSITIONS, 2 * len(samples)) if goes_forward else 0
            begin = first
            epochs, samples = self._order.at(first, max(count, ahead))
            self._drawn = (begin, epochs, samples)
        here = slice(first - begin, first - begin + count)
        return epochs[here], samples[here]
