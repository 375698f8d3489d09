"""Gradients added up over the workers that hold the same weights, while backward still runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from headway.errors import PeerLost
from headway.train.peers import Adding, Peers
from headway.train.shard import local_part

BUCKET_BYTES = 8 * 2**20
"""One message for many small tensors: a message costs about 50 microseconds on gloo whatever its
size. Smaller ones begin sooner."""


Tensor = TypeVar("Tensor", bound=torch.Tensor)


class Gradients:
    """Of all parameters, in buckets that are sent as soon as they are complete.

    A parameter without a gradient here may have one elsewhere (an own model may branch), so it
    takes part as zeros: all replicas must send the same buckets, in the same order. One worker
    alone does as several would: the result must not depend on their number.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = [p for p in parameters if p.requires_grad]
        self._is_sharded = any(hasattr(p, "to_local") for p in self._parameters)
        self._peers: Peers | None = None
        self._buckets: list[_Bucket] = []
        self._is_last_slice = False
        self._lost: PeerLost | None = None

    def begin(self, peers: Peers | None) -> None:
        """Before the first slice of a step: no gradients yet."""
        self._peers, self._is_last_slice, self._lost = peers, False, None
        if peers is None or self._is_sharded:
            for parameter in self._parameters:
                parameter.grad = None
            return
        if not self._buckets:
            # From the end, as backward makes them.
            self._buckets = [_Bucket(some) for some in _buckets(self._parameters[::-1])]
            for bucket in self._buckets:
                for parameter in bucket.parameters:
                    parameter.register_post_accumulate_grad_hook(self._noting(bucket))
        for bucket in self._buckets:
            bucket.clear()

    def last_slice(self) -> None:
        """The next backward pass completes them."""
        self._is_last_slice = True

    def finish(self, sums: torch.Tensor) -> PeerLost | None:
        """COLLECTIVE. After it, every replica has the sums over the whole global batch, of the
        gradients and of `sums`; unless a peer was lost, which is returned, not raised: others may
        have to be told first."""
        if self._peers is None or self._is_sharded:
            for parameter in self._parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            return None if self._peers is None else self._add_up_shards(self._peers, sums)
        for bucket in self._buckets:
            self._send(bucket)
        last = self._start(sums)  # on its way with the last bucket
        for bucket in self._buckets:
            adding, bucket.adding = bucket.adding, None
            bucket.is_in_doubt = adding is not None and not self._has_ended(adding)
        if last is not None:
            self._has_ended(last)
        return self._lost

    def _has_ended(self, adding: Adding) -> bool:
        """Waits for a sum, unless one before it has failed."""
        if self._lost is not None:
            adding.abandon()
            return False
        try:
            adding.finish()
        except PeerLost as lost:
            self._lost = lost
        return self._lost is None

    def _noting(self, bucket: _Bucket) -> Callable[[torch.Tensor], None]:
        def note(parameter: torch.Tensor) -> None:
            if not self._is_last_slice or self._peers is None:
                return
            bucket.num_missing -= 1
            for following in self._buckets:  # in order, on all workers
                if following.num_missing > 0:
                    return
                self._send(following)

        return note

    def _send(self, bucket: _Bucket) -> None:
        if bucket.is_sent or self._lost is not None:
            return
        bucket.is_sent = True
        bucket.collect()
        bucket.adding = self._start(bucket.flat)

    def _start(self, tensor: torch.Tensor) -> Adding | None:
        assert self._peers is not None
        try:
            return self._peers.start_adding_up(tensor) if self._lost is None else None
        except PeerLost as lost:  # not raised into the backward pass
            self._lost = lost
            return None

    def _add_up_shards(self, peers: Peers, sums: torch.Tensor) -> PeerLost | None:
        """After the last backward pass: what FSDP2 has accumulated is complete only then."""
        gradients = [local_part(p.grad) for p in self._parameters if p.grad is not None]
        of_losses = self._start(sums)
        try:
            for bucket in _buckets(gradients):
                flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
                peers.add_up(flat)
                parts = flat.split([gradient.numel() for gradient in bucket])
                torch._foreach_copy_(
                    bucket, [part.view_as(to) for part, to in zip(parts, bucket, strict=True)]
                )
        except PeerLost as lost:
            self._lost = self._lost or lost
        if of_losses is not None:
            self._has_ended(of_losses)
        return self._lost


class _Bucket:
    """Gradients of some parameters that lie side by side, so that nothing is copied to send it."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self._allocate()
        self.num_missing = 0
        self.is_sent = False
        self.adding: Adding | None = None
        self.is_in_doubt = False
        """A sum was abandoned with its group, and may still write to this memory."""

    def _allocate(self) -> None:
        parameters = self.parameters
        self.flat = torch.zeros(
            sum(p.numel() for p in parameters),
            dtype=parameters[0].dtype,
            device=parameters[0].device,
        )
        parts = self.flat.split([p.numel() for p in parameters])
        self._views = [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]

    def clear(self) -> None:
        if self.is_in_doubt:
            self._allocate()
        else:
            self.flat.zero_()
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.grad = view
        self.num_missing, self.is_sent, self.adding = len(self.parameters), False, None
        self.is_in_doubt = False

    def collect(self) -> None:
        """Where autograd has put a tensor of its own in the place of ours."""
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.grad is not view:
                if parameter.grad is not None:
                    view.copy_(parameter.grad)
                parameter.grad = view


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        size_here = tensor.numel() * tensor.element_size()
        if bucket and (size + size_here > BUCKET_BYTES or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += size_here
    if bucket:
        yield bucket
