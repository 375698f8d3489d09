"""Says what a worker reads next: its own rows of the coming steps, fetched one by one or in whole
blocks."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

AHEAD_STEPS = 24
"""Steps whose rows are announced, at most: seconds of training where steps are short, and little
to fetch in vain when the shares change."""
AHEAD_ROWS = 1024
"""Rows that are announced, at most, but for those of two steps. Drawing so many takes 2 ms."""
REQUEST_BYTES = 2**16
"""Bytes that cost as much as a request. By price they are fewer: a million requests cost $0.40, a
gigabyte between regions $0.01 to $0.02, so a request is worth 20 to 40 KB. By processor time they
are more: 0.6 ms is worth 270 KB (versitygw, 2026-11-20). At this figure a machine that reads less
than a fifth of the rows of a block of 4 MiB, each of 16 KiB, fetches the rows."""


@dataclass(frozen=True)
class BatchShare:
    """The rows of each global batch that a worker reads."""

    global_batch: int
    first: int
    count: int
    of_machine: float
    """Share of each batch that the workers of this machine read together, from 0 to 1."""


class StepsAhead:
    """The steps whose rows have been announced."""

    def __init__(self) -> None:
        self._key: Hashable = None
        self._begin = self._end = 0

    def renewed(
        self, key: Hashable, step: int, share: BatchShare, end: int | None = None
    ) -> np.ndarray | None:
        """Positions of the worker's rows in the coming steps, before the position `end`. None while
        more than half of these steps are announced already."""
        until = step + max(2, min(AHEAD_STEPS, AHEAD_ROWS // max(1, share.count)))
        if end is not None:
            until = max(step + 1, min(until, end // share.global_batch))
        is_same = (key, share) == self._key and self._begin <= step
        if is_same and 2 * (self._end - step) > until - step:
            return None
        self._key, self._begin, self._end = (key, share), step, until
        firsts = np.arange(step, until, dtype=np.int64) * share.global_batch + share.first
        return np.add.outer(firsts, np.arange(share.count, dtype=np.int64)).ravel()


def rows_cost_less(num_rows: float, row_bytes: int, block_bytes: int) -> bool:
    """Whether it costs less to fetch these rows of a block one by one than the whole block.
    `num_rows`: those that all workers of the machine need, since they share its blocks."""
    return max(1.0, num_rows) * (row_bytes + REQUEST_BYTES) < block_bytes + REQUEST_BYTES
