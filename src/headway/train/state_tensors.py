"""Training state as named tensors, and which rows of each tensor this worker holds.

Names: `model/NAME` for weights and buffers, `optimizer/NAME/KEY` for the optimizer's state of the
parameter NAME. A tied weight has one name, its first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
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


def rows_to_write(tensors: list[StateTensor], world: World) -> list[StateTensor]:
    """This worker's part of a save. The writers together write every row once, and know each
    other's parts without a collective.

    A shard is divided among the copies of the model that have it, and what all ranks hold whole
    among all writers.
    """
    if not world.writes_checkpoints:
        return []
    copy, num_copies = world.rank // world.shard_size, world.num_writers // world.shard_size
    shards = [t for t in tensors if t.is_sharded and t.local.numel() > 0]
    whole = [t for t in tensors if not t.is_sharded]
    mine = [
        *_share_of_rows(shards, copy, num_copies),
        *_share_of_rows(whole, world.rank, world.num_writers),
    ]
    return sorted(mine, key=lambda t: t.name)


def _share_of_rows(tensors: list[StateTensor], share: int, num_shares: int) -> list[StateTensor]:
    """One of `num_shares` consecutive parts of all rows, which have the same number of bytes but
    for half a row at each end."""
    total = sum(tensor.local.nbytes for tensor in tensors)
    begin, end = (total * cut // num_shares for cut in (share, share + 1))
    found, at = [], 0
    for tensor in sorted(tensors, key=lambda t: t.name):
        num_bytes, rows = tensor.local.nbytes, tensor.rows
        first, last = (_rows_up_to(bound - at, num_bytes, rows) for bound in (begin, end))
        at += num_bytes
        if (first, last) == (0, rows) and num_bytes:
            found.append(tensor)
        elif first < last:
            some = tensor.local[first:last]
            found.append(replace(tensor, start=tensor.start + first, local=some))
        elif num_bytes == 0 and share == 0:
            found.append(tensor)  # a save names all tensors
    return found


def _rows_up_to(num_bytes: int, all_bytes: int, rows: int) -> int:
    """Rows of a tensor of `all_bytes` that are before its byte `num_bytes`, to the nearest row."""
    if num_bytes <= 0 or all_bytes == 0:
        return 0
    return min(rows, (2 * num_bytes * rows + all_bytes) // (2 * all_bytes))


def tied_names(model: nn.Module) -> set[str]:
    """Names of a tied parameter beyond its first: it is stored once, under the first."""
    first = {name for name, _ in model.named_parameters()}
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return every - first
