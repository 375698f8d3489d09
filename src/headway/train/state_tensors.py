"""Training state as named tensors, and which rows of each tensor this worker holds.

Names: `model/NAME` for weights and buffers, `optimizer/NAME/KEY` for the optimizer's state of the
parameter NAME. A tied weight has one name, its first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from headway.train.world import World


@dataclass(frozen=True)
class StateTensor:
    """A tensor of the training state, and the rows [start, start + rows) of its first dimension
    that this worker holds."""

    name: str
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    start: int
    local: torch.Tensor
    """The rows in this worker's memory, not a copy."""
    is_sharded: bool

    @property
    def rows(self) -> int:
        return self.local.shape[0] if self.local.ndim else 1


def state_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[StateTensor]:
    """The whole training state, as far as this worker holds it."""
    tied = tied_names(model)
    for name, tensor in model.state_dict().items():
        if name not in tied:
            yield state_tensor_of(f"model/{name}", tensor)
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            yield state_tensor_of(f"optimizer/{name}/{key}", value)


def state_tensor_of(name: str, tensor: Any) -> StateTensor:
    if not isinstance(tensor, DTensor):
        return StateTensor(
            name, tuple(tensor.shape), start=0, local=tensor.detach(), is_sharded=False
        )
    local_shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    assert all(o == 0 for o in offset[1:]), f"{name} is sharded beyond its first dimension"
    assert tuple(local_shape[1:]) == tuple(tensor.shape[1:])
    return StateTensor(
        name,
        tuple(tensor.shape),
        start=offset[0] if offset else 0,
        local=tensor.to_local().detach(),
        is_sharded=True,
    )


def tensors_to_write(tensors: list[StateTensor], world: World) -> list[StateTensor]:
    """This worker's part of a save: the ranks of the first node together write every row once.

    A rank writes the shards that it holds. Tensors that every rank of the node holds whole are
    distributed by size, the largest first, so that all ranks write about the same amount.
    """
    if not world.writes_checkpoints:
        return []
    mine = [t for t in tensors if t.is_sharded and t.local.numel() > 0]
    load = [0] * world.placement.domain_size
    whole = [t for t in tensors if not t.is_sharded]
    for tensor in sorted(whole, key=lambda t: (-t.local.nbytes, t.name)):
        rank = load.index(min(load))
        load[rank] += tensor.local.nbytes
        if rank == world.placement.local_rank:
            mine.append(tensor)
    return sorted(mine, key=lambda t: t.name)


def tied_names(model: nn.Module) -> set[str]:
    """Names of a tied parameter beyond its first: it is stored once, under the first."""
    first = {name for name, _ in model.named_parameters()}
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return every - first
