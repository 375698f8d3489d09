"""Gradients all-reduced over the workers that hold the same weights, while backward still runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch.distributed.tensor import DTensor

from headway.errors import PeerLost, RunFailed
from headway.train.collectives import PendingCollective, WorkerGroup
from headway.train.device import is_accelerator
from headway.train.fsdp import local_part, with_local_part

BUCKET_BYTES = 8 * 2**20
"""One all-reduce for many small tensors: each costs about 50 microseconds on gloo whatever its
size. Smaller buckets start sooner."""
ACCELERATOR_BUCKET_BYTES = 64 * 2**20
"""The same on accelerators, whose links are a hundred times as fast (not measured)."""
SMALL_RING = 32
"""Replicas above which buckets are larger. gloo sends a bucket in two parts for each replica, one
after the other around the ring: 128 KiB each, here. At 50 microseconds a part and 10 Gbit/s, parts
of half the size would take as long to begin as to send."""
MOST_BUCKET_BYTES = 256 * 2**20
LEAST_BUCKETS = 8
"""Where buckets are larger than the smallest: the first is sent when an eighth of the backward pass
is done."""


def bucket_bytes(num_replicas: int, gradient_bytes: int, on_accelerator: bool = False) -> int:
    """Size of a bucket. All replicas find the same, whenever they joined; one that is lost changes
    it only where the group falls below a power of two."""
    ring = 1 << (num_replicas - 1).bit_length()
    usual = ACCELERATOR_BUCKET_BYTES if on_accelerator else BUCKET_BYTES
    wanted = max(usual, BUCKET_BYTES * ring // SMALL_RING)
    return max(BUCKET_BYTES, min(wanted, MOST_BUCKET_BYTES, gradient_bytes // LEAST_BUCKETS))


class GradientReducer:
    """All-reduces the gradients of a model in buckets, each as soon as it is complete.

    A parameter without a gradient here may have one on another worker (a user's model may branch),
    so it takes part as zeros: all replicas must reduce the same buckets, in the same order. One
    worker alone does the same as several: the result must not depend on their number.

    Of a sharded model each rank reduces its shards. FSDP2 adds them up in our buckets, and calls
    our hooks after each pass of a unit.

    A backward pass raises PeerLost when the generation is over: from a long pass a worker would
    come as late to the next generation. Not where the model is sharded: the other ranks of its
    copy would wait in the pass, and FSDP2's units could not be used again.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """`parameters` are in the reverse of the order in which a backward pass completes them."""
        self._parameters = [p for p in parameters if p.requires_grad]
        self._is_sharded = any(isinstance(p, DTensor) for p in self._parameters)
        self._replicas: WorkerGroup | None = None
        self._num_bytes = sum(map(_num_bytes, self._parameters))
        self._has_hooks = False
        self._buckets: list[_Bucket] = []
        self._bucket_bytes = 0
        self._bucket_of: dict[torch.nn.Parameter, _Bucket] = {}
        self._is_last_micro_batch = False
        self._lost: PeerLost | None = None

    def begin(self, replicas: WorkerGroup | None) -> None:
        """Before the first micro-batch of a step: clears all gradients."""
        self._replicas, self._is_last_micro_batch, self._lost = replicas, False, None
        if replicas is None:
            self._drop_buckets()
            return
        on_accelerator = any(is_accelerator(p.device) for p in self._parameters)
        size = bucket_bytes(replicas.size, self._num_bytes, on_accelerator)
        if size != self._bucket_bytes:
            self._make_buckets(size)
        for bucket in self._buckets:
            bucket.clear()

    def _drop_buckets(self) -> None:
        self._buckets, self._bucket_of, self._bucket_bytes = [], {}, 0
        for parameter in self._parameters:
            parameter.grad = None

    def _make_buckets(self, size: int) -> None:
        # Not the old and the new at once: they are as large as all gradients.
        self._drop_buckets()
        if not self._has_hooks:
            for parameter in self._parameters:
                parameter.register_post_accumulate_grad_hook(self._hook_of(parameter))
        self._has_hooks, self._bucket_bytes = True, size
        # From the end, as backward makes them.
        self._buckets = [_Bucket(some) for some in _divided(self._parameters[::-1], size)]
        self._bucket_of = {one: bucket for bucket in self._buckets for one in bucket.parameters}

    def last_micro_batch(self) -> None:
        """The next backward pass completes them."""
        self._is_last_micro_batch = True

    def finish(self, sums: torch.Tensor | None) -> PeerLost | None:
        """COLLECTIVE. Afterwards every replica has the sums of the gradients and of `sums` over the
        whole global batch. A lost peer is returned, not raised: other ranks may have to be told
        first."""
        if self._replicas is None:
            for parameter in self._parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            return None
        for bucket in self._buckets:
            self._start_bucket(bucket)
        last = None if sums is None else self._start(sums)  # in flight with the last bucket
        for bucket in self._buckets:
            pending, bucket.pending = bucket.pending, None
            bucket.is_in_doubt = pending is not None and not self._wait(pending)
        if last is not None:
            self._wait(last)
        return self._lost

    def _wait(self, pending: PendingCollective) -> bool:
        """Whether it succeeded. Abandons it if one before it has failed."""
        if self._lost is not None:
            pending.abandon()
            return False
        try:
            pending.wait()
        except PeerLost as lost:
            self._lost = lost
        return self._lost is None

    def _hook_of(self, parameter: torch.nn.Parameter) -> Callable[[torch.Tensor], None]:
        def hook(_: torch.Tensor) -> None:
            if self._replicas is None:
                return
            if self._replicas.is_over:  # the rest of this pass would be wasted
                over = PeerLost("the generation is over")
                if self._is_sharded:
                    self._lost = self._lost or over
                    return
                self._abandon()
                raise over
            if not self._is_last_micro_batch:
                return
            missing = self._bucket_of[parameter].missing
            if parameter not in missing:
                self._abandon()
                raise _came_twice(parameter)
            missing.remove(parameter)
            for following in self._buckets:  # in order, on all workers
                if following.missing:
                    return
                self._start_bucket(following)

        return hook

    def _abandon(self) -> None:
        for bucket in self._buckets:
            if bucket.pending is not None:
                bucket.pending.abandon()
                bucket.pending, bucket.is_in_doubt = None, True

    def _start_bucket(self, bucket: _Bucket) -> None:
        if bucket.is_started or bucket.flat.numel() == 0 or self._lost is not None:
            return
        bucket.is_started = True
        bucket.collect()
        bucket.pending = self._start(bucket.flat)

    def _start(self, tensor: torch.Tensor) -> PendingCollective | None:
        assert self._replicas is not None
        try:
            return self._replicas.start_all_reduce(tensor) if self._lost is None else None
        except PeerLost as lost:  # not raised into the backward pass
            self._lost = lost
            return None


class _Bucket:
    """Gradients of some parameters, or this rank's shards of them, contiguous in memory, so that
    nothing is copied to reduce them."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self._allocate()
        self.missing: set[torch.nn.Parameter] = set()
        """Parameters whose gradient is not complete in this step."""
        self.is_started = False
        self.pending: PendingCollective | None = None
        self.is_in_doubt = False
        """An all-reduce was abandoned with its group, and may still write to this memory."""

    def _allocate(self) -> None:
        parameters = self.parameters
        local = [local_part(p) for p in parameters]
        self.flat = torch.zeros(
            sum(p.numel() for p in local),
            dtype=parameters[0].dtype,
            device=parameters[0].device,
        )
        parts = self.flat.split([p.numel() for p in local])
        self._views = [part.view_as(p) for part, p in zip(parts, local, strict=True)]
        self._gradients = [
            with_local_part(p, view) for p, view in zip(parameters, self._views, strict=True)
        ]

    def clear(self) -> None:
        if self.is_in_doubt:
            self._allocate()
        else:
            self.flat.zero_()
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient
        self.missing, self.is_started, self.pending = set(self.parameters), False, None
        self.is_in_doubt = False

    def collect(self) -> None:
        """Copies gradients back where autograd has replaced our tensor by one of its own."""
        for parameter, gradient, view in zip(
            self.parameters, self._gradients, self._views, strict=True
        ):
            if parameter.grad is not gradient:
                if parameter.grad is not None:
                    view.copy_(local_part(parameter.grad))
                parameter.grad = gradient


def _came_twice(parameter: torch.nn.Parameter) -> RunFailed:
    """Autograd adds up all uses of a parameter, tied weights too, before it calls the hook. Only a
    backward pass inside the backward pass calls it again, maybe after the bucket was sent."""
    return RunFailed(
        f"the gradient of a parameter of shape {list(parameter.shape)} came twice in one backward "
        "pass: workers would all-reduce it before it is complete",
        "reentrant activation checkpointing does this to shared layers: call "
        "torch.utils.checkpoint.checkpoint with use_reentrant=False",
    )


def _num_bytes(parameter: torch.nn.Parameter) -> int:
    """Bytes of its gradient, or of this rank's shard of it."""
    return local_part(parameter).numel() * parameter.element_size()


def _divided(
    parameters: Sequence[torch.nn.Parameter], most_bytes: int
) -> Iterator[list[torch.nn.Parameter]]:
    bucket: list[torch.nn.Parameter] = []
    size = 0
    for parameter in parameters:
        size_here = _num_bytes(parameter)
        if bucket and (size + size_here > most_bytes or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += size_here
    if bucket:
        yield bucket
