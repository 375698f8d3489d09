"""Training state as named tensors, and which rows of which tensor this worker holds.

Names: `model/NAME` for weights and buffers, `optimizer/NAME/KEY` for what the optimizer keeps of
the parameter NAME. A tied weight has one name, its first.
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
class Piece:
    """Rows [start, start + rows) of a tensor's first dimension, as they lie in this worker."""

    name: str
    shape: tuple[int, ...]
    """Of the whole tensor."""
    start: int
    local: torch.Tensor
    is_sharded: bool

    @property
    def rows(self) -> int:
        return self.local.shape[0] if self.local.ndim else 1


def state_pieces(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Piece]:
    """All that this worker holds of the training state."""
    tied = tied_names(model)
    for name, tensor in model.state_dict().items():
        if name not in tied:
            yield piece_of(f"model/{name}", tensor)
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            yield piece_of(f"optimizer/{name}/{key}", value)


def piece_of(name: str, tensor: Any) -> Piece:
    if not isinstance(tensor, DTensor):
        return Piece(name, tuple(tensor.shape), 0, tensor.detach(), False)
    local_shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    assert all(o == 0 for o in offset[1:]), f"{name} is sharded beyond its first dimension"
    assert tuple(local_shape[1:]) == tuple(tensor.shape[1:])
    start = offset[0] if offset else 0
    return Piece(name, tuple(tensor.shape), start, tensor.to_local().detach(), True)


def pieces_to_write(pieces: list[Piece], world: World) -> list[Piece]:
    """This worker's part of a save: of what the first node's ranks hold, every row once.

    Shards are written by whoever holds them. What every rank of the node holds whole is dealt out
    by size, the largest first, so that all write about the same amount.
    """
    if not world.leads:
        return []
    mine = [p for p in pieces if p.is_sharded and p.local.numel() > 0]
    load = [0] * world.place.domain_size
    whole = [p for p in pieces if not p.is_sharded]
    for piece in sorted(whole, key=lambda p: (-p.local.nbytes, p.name)):
        rank = load.index(min(load))
        load[rank] += piece.local.nbytes
        if rank == world.place.local_rank:
            mine.append(piece)
    return sorted(mine, key=lambda p: p.name)


def tied_names(model: nn.Module) -> set[str]:
    """Names under which a parameter appears again: it is stored once, under its first name."""
    first = {name for name, _ in model.named_parameters()}
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return every - first
