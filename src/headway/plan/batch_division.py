"""Which worker computes which micro-batches of a global batch.

The global batch of B sequences is cut into micro-batches of `micro` rows, the same way for any
number of workers; the last micro-batch is padded with rows of weight zero. Workers come and go,
micro-batches do not change: the result of a step does not depend on which workers computed it, and
shapes never change.

Everything here is integer arithmetic, in constant time for one worker: each worker can compute its
own share, and that of any other, from (micro-batches, workers, group size, rank) alone.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_LOSS_ROWS = 1024
"""Rows of a chunk of the loss, at least: with fewer, adding up the gradient of the head takes an
accelerator as long as computing it."""
CHUNK_LOGITS = 2**27
"""Logits of a chunk that has more rows than LEAST_LOSS_ROWS, at most: 512 MiB in fp32."""


@dataclass(frozen=True)
class MicroBatchShare:
    """The micro-batches [first, first + count) of one worker, then `padded` empty ones.

    An empty micro-batch has the same shape with all rows at weight zero: it contributes nothing and
    keeps the worker in step with the collectives of its group.
    """

    first: int
    count: int
    padded: int

    @property
    def num_passes(self) -> int:
        """Number of forward and backward passes of the worker; never zero."""
        return self.count + self.padded


def loss_rows(tokens: int, vocabulary: int) -> int:
    """Rows of a chunk, where a micro-batch of so many tokens computes its loss in chunks: these are
    of equal size, but for the last one."""
    most = max(LEAST_LOSS_ROWS, CHUNK_LOGITS // vocabulary)
    return -(-tokens // -(-tokens // most))


def num_micro_batches(global_batch: int, micro: int) -> int:
    assert global_batch >= 1
    assert micro >= 1
    return -(-global_batch // micro)


def micro_batch_rows(index: int, global_batch: int, micro: int) -> tuple[int, int]:
    """(first row in the global batch, number of real rows): fewer than `micro` only in the last."""
    assert 0 <= index < num_micro_batches(global_batch, micro)
    first = index * micro
    return first, min(micro, global_batch - first)


def share_of(
    num_micro_batches: int, num_workers: int, group_size: int, rank: int
) -> MicroBatchShare:
    """The share of worker `rank`, in constant time.

    With micro-batches = base x workers + extra, the first `extra` workers take base + 1 and the
    others base, in order; so worker r starts at r x base + min(r, extra).

    Workers of a shard group (`group_size` consecutive ranks; 1 = not sharded) gather and scatter
    weights in every pass, so unequal numbers of passes make them hang (measured). All run as many
    passes as the largest share in the group, which is that of its first rank, since shares never
    grow with the rank. A worker or group without micro-batches still runs one empty pass: its
    gradients take part in the all-reduce.
    """
    assert num_micro_batches >= 0
    assert num_workers >= 1
    assert group_size >= 1
    assert num_workers % group_size == 0, (
        f"{num_workers} workers do not form whole groups of {group_size}"
    )
    assert 0 <= rank < num_workers
    base, extra = divmod(num_micro_batches, num_workers)
    count = base + (rank < extra)
    first_of_group = rank - rank % group_size
    num_passes = max(1, base + (first_of_group < extra))
    first = rank * base + min(rank, extra)
    return MicroBatchShare(first=first, count=count, padded=num_passes - count)


def divide(
    num_micro_batches: int, num_workers: int, group_size: int = 1
) -> tuple[MicroBatchShare, ...]:
    """The shares of all workers, by rank: every micro-batch once, in order, counts within one."""
    assert num_workers >= 1
    return tuple(
        share_of(num_micro_batches, num_workers, group_size, rank) for rank in range(num_workers)
    )
