"""Who computes which slices of a global batch.

The global batch of B sequences is cut into slices of `micro` rows, the same cut for any number of
workers; the last slice is filled up with rows of weight zero. Workers come and go, slices do not
change: so the result of a step does not depend on who computed it, and no shape is ever new.

Everything here is arithmetic on integers, in constant time for one worker: each can work out its
own part, and anyone's else, from (slices, workers, group, rank) alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """The slices [first, first + count) of one worker, then `padded` empty ones.

    An empty slice has the same shape with all rows at weight zero: it adds nothing and keeps the
    worker in step with the collectives of its group.
    """

    first: int
    count: int
    padded: int

    @property
    def passes(self) -> int:
        """Forward and backward passes that the worker runs: never zero."""
        return self.count + self.padded


def num_slices(global_batch: int, micro: int) -> int:
    assert global_batch >= 1
    assert micro >= 1
    return -(-global_batch // micro)


def rows_of_slice(slice_index: int, global_batch: int, micro: int) -> tuple[int, int]:
    """(first row in the global batch, number of real rows): less than `micro` only in the last."""
    assert 0 <= slice_index < num_slices(global_batch, micro)
    first = slice_index * micro
    return first, min(micro, global_batch - first)


def share_of(slices: int, workers: int, group: int, rank: int) -> Share:
    """The share of worker `rank` of `workers`, in constant time.

    With slices = base x workers + extra, the first `extra` workers take base + 1 and the others
    base, in order; so worker r begins at r x base + min(r, extra).

    Workers of a shard group (`group` consecutive ranks; 1 = not sharded) gather and scatter weights
    in every pass, so unequal numbers of passes hang them: measured. All run the group's largest
    count, which is that of its first rank since counts never grow with the rank. A worker or group
    without slices still runs one empty pass: its gradients take part in the reduction.
    """
    assert slices >= 0
    assert workers >= 1
    assert group >= 1
    assert workers % group == 0, f"{workers} workers do not form whole groups of {group}"
    assert 0 <= rank < workers
    base, extra = divmod(slices, workers)
    count = base + (rank < extra)
    first_of_group = rank - rank % group
    passes = max(1, base + (first_of_group < extra))
    return Share(first=rank * base + min(rank, extra), count=count, padded=passes - count)


def divide(slices: int, workers: int, group: int = 1) -> tuple[Share, ...]:
    """The shares of all workers, by rank: every slice once, in order, counts within one."""
    assert workers >= 1
    return tuple(share_of(slices, workers, group, rank) for rank in range(workers))
