"""Gradients added up over the workers that hold the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from headway.train.shard import local_part
from headway.train.world import World

BUCKET_BYTES = 32 * 2**20
"""One message for many small tensors: a message costs about 50 microseconds on gloo whatever its
size, and 32 MiB are enough to hide that."""


def add_up_gradients(parameters: Sequence[torch.Tensor], world: World) -> None:
    """COLLECTIVE. After it, every replica has the gradient sums of the whole global batch.

    A parameter without a gradient here may have one elsewhere (an own model may branch), so it
    takes part as zeros: all replicas must send the same list.
    """
    if world.num_workers == world.shard_size:
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [local_part(p.grad) for p in parameters if p.grad is not None]
    for bucket in _buckets(gradients):
        if len(bucket) == 1 and bucket[0].is_contiguous():
            world.add_up_replicas(bucket[0])
            continue
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
        world.add_up_replicas(flat)
        parts = flat.split([gradient.numel() for gradient in bucket])
        torch._foreach_copy_(
            bucket, [part.view_as(to) for part, to in zip(parts, bucket, strict=True)]
        )


def _buckets(gradients: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    bucket: list[torch.Tensor] = []
    size = 0
    for gradient in gradients:
        size_here = gradient.numel() * gradient.element_size()
        if bucket and (size + size_here > BUCKET_BYTES or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += size_here
    if bucket:
        yield bucket
