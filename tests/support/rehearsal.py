"""A step of one rank of many on tensors without memory: how many bytes it would hold at most.

The model, FSDP2 and our step are the real ones; tensors are fake ones of torch on the CPU, and so
is the process group, of any number of ranks. Attention is that of the CPU, and communication has no
buffers of its own. The private interfaces of torch that this needs are all in this file.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headway.plan.batch_division import MicroBatchShare
from headway.plan.workload import CountedModel, Layout, Workload
from headway.train.batches import Batch
from headway.train.collectives import WorkerGroup
from headway.train.feed import Feed
from headway.train.fsdp import parameters_by_unit, shard_model
from headway.train.gradient_all_reduce import GradientReducer
from headway.train.gradient_norm import squared_norm
from headway.train.models import BuiltModel, find_blocks, find_ends
from headway.train.objectives import ChunkedTokenLoss, token_loss
from headway.train.precision import LossScale
from headway.train.recomputed_blocks import recompute_blocks
from headway.train.step import Training, run_micro_batches
from headway.train.weight_copies import WeightCopies, cast_inputs
from headway.train.world import RankPlacement, World

CPU = torch.device("cpu")
LAYERS = (4, 6)
"""Numbers of layers that are rehearsed. From there on each adds the same: of two, none is gathered
while another is computed and a third is reduced."""
NUM_LAYERS = {"gpt2": "n_layer"}
"""Where `num_hidden_layers` has another name."""


@dataclass(frozen=True)
class RehearsedBytes:
    state: float
    """Weights and both averages of the optimizer: what is there between two steps."""
    peak: float
    """At most in a step of several micro-batches, all included."""


def rehearsed_bytes(workload: Workload, layout: Layout, num_ranks: int) -> RehearsedBytes:
    """Of rank 0, in a process that has no process group yet. Two shallow models are rehearsed, and
    the rest follows: a block holds the same wherever it is."""
    few, more = LAYERS
    num_layers = workload.model.size.num_layers
    dist.init_process_group("fake", rank=0, world_size=num_ranks, store=FakeStore())
    try:
        one = _rehearse(_with_layers(workload, few), layout, num_ranks)
        other = _rehearse(_with_layers(workload, more), layout, num_ranks)
    finally:
        dist.destroy_process_group()
    steps = (num_layers - few) / (more - few)
    return RehearsedBytes(
        state=one.state + steps * (other.state - one.state),
        peak=one.peak + steps * (other.peak - one.peak),
    )


def put_rehearsed(workload: Workload, layout: Layout, num_ranks: int, answers: Any) -> None:
    """For a process of its own: (state, peak)."""
    found = rehearsed_bytes(workload, layout, num_ranks)
    answers.put((found.state, found.peak))


def _with_layers(workload: Workload, number: int) -> Workload:
    model = workload.model
    key = NUM_LAYERS.get(model.type, "num_hidden_layers")
    shallow = CountedModel(model.type, {**model.config, key: number}, model.size)
    return replace(workload, model=shallow)


def _rehearse(workload: Workload, layout: Layout, num_ranks: int) -> RehearsedBytes:
    mesh = init_device_mesh("cpu", (num_ranks,)) if layout.shard_devices > 1 else None
    placement = RankPlacement(CPU, domain_size=layout.shard_devices, shard_mesh=mesh)
    replicas = None
    if mesh is None and num_ranks > 1:
        assert dist.group.WORLD is not None
        replicas = WorkerGroup(dist.group.WORLD)
    world = World(0, num_ranks, 0, placement, replicas)
    with FakeTensorMode(), LiveBytes() as live:
        built = _built(workload, layout, placement)
        training = _training(workload, built, is_sharded=mesh is not None)
        averages = [torch.zeros_like(p) for p in built.module.parameters() for _ in range(2)]
        state = live.now
        _step(training, world)  # what torch allocates once
        live.peak = 0
        _step(training, world)
        del averages
    return RehearsedBytes(state, live.peak)


def _built(workload: Workload, layout: Layout, placement: RankPlacement) -> BuiltModel:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    config = AutoConfig.for_model(workload.model.type, **workload.model.config)
    config.use_cache = False
    kind: Any = AutoModelForMaskedLM if workload.model.type == "bert" else AutoModelForCausalLM
    module: nn.Module = kind.from_config(
        config, attn_implementation="sdpa", dtype=torch.float32
    ).train()
    blocks = find_blocks(module)
    ends = find_ends(module, blocks)
    built = BuiltModel(module, blocks, None, is_transformers=True, ends=ends)
    cast_inputs(built, workload.precision, placement)
    recompute_blocks(built.blocks[: layout.recomputed_blocks])
    if placement.shard_mesh is not None:
        shard_model(built, placement, workload.precision)
    return built


def _training(workload: Workload, built: BuiltModel, *, is_sharded: bool) -> Training:
    """With what a step needs before its one sync, which a fake tensor has no answer to."""
    data = SimpleNamespace(sequence_length=workload.sequence_length)
    run = SimpleNamespace(precision=workload.precision, data=data)
    return cast(
        Training,
        SimpleNamespace(
            resolved=SimpleNamespace(run=run, micro=workload.micro),
            model=built.module,
            objective=ChunkedTokenLoss() if workload.loss_in_chunks else token_loss,
            feed=cast(Feed, _FakeFeed(workload)),
            scale=LossScale(workload.precision),
            gradient_reducer=GradientReducer(parameters_by_unit(built.module)),
            copies=WeightCopies(built.module, workload.precision, is_sharded),
            step=0,
        ),
    )


def _step(training: Training, world: World) -> None:
    with training.copies.in_use():
        sums, _, _ = run_micro_batches(training, world)
    training.gradient_reducer.finish(sums)
    squared_norm([p.grad for p in training.model.parameters() if p.grad is not None])


class _FakeFeed:
    """Two micro-batches for each rank: gradients of the first are there while the second runs."""

    def __init__(self, workload: Workload) -> None:
        self._shape = (workload.micro, workload.sequence_length)
        self.num_micro_batches = 10**6

    def step(self, step: int, share: MicroBatchShare) -> Iterator[Batch]:
        for _ in range(2):
            tokens = torch.zeros(self._shape, dtype=torch.int64)
            real = torch.ones(self._shape[0], dtype=torch.bool)
            yield Batch(tokens, tokens.clone(), real, seed=0)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operators return, for as long as these live."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            if isinstance(value, torch.Tensor):
                self._add(value.to_local() if isinstance(value, DTensor) else value)
        return found

    def __enter__(self) -> LiveBytes:
        self._resize = original = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = original(storage, size)
            if storage._cdata in self._sizes:
                self._change(storage._cdata, storage.nbytes())
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        return cast(LiveBytes, super().__enter__())

    def __exit__(self, *reason: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*reason)

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = 0
            weakref.finalize(storage, self._drop, key)
        self._change(key, storage.nbytes())

    def _change(self, key: int, size: int) -> None:
        self.now += size - self._sizes[key]
        self._sizes[key] = size
        self.peak = max(self.peak, self.now)

    def _drop(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)
