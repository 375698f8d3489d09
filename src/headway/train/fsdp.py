"""Sharding of one copy of the model over the ranks of a node (FSDP2)."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from headway.train.models import BuiltModel
from headway.train.precision import COMPUTE_DTYPE, Precision
from headway.train.world import RankPlacement


def shard_model(built: BuiltModel, placement: RankPlacement, precision: Precision) -> None:
    """In place. Weights of a block are all-gathered when used; gradients are reduce-scattered as
    sums."""
    assert placement.shard_mesh is not None
    policy = MixedPrecisionPolicy()
    if precision != "fp32":
        # Weights travel in the precision they are computed with, half the bytes; gradients are
        # added up in fp32.
        policy = MixedPrecisionPolicy(
            param_dtype=COMPUTE_DTYPE[precision], reduce_dtype=torch.float32
        )
    shard = partial(fully_shard, mesh=placement.shard_mesh, mp_policy=policy)
    for block in built.blocks:
        shard(block)
    if built.ends is not None:
        # As parts of the root their gradients would be reduced after those of all blocks.
        shard(built.ends.head, reshard_after_forward=False)  # backward begins with it
        shard(built.ends.table).set_unshard_in_backward(False)  # its gradient needs no weights
    shard(built.module)
    for part in built.module.modules():
        if isinstance(part, FSDPModule):
            # FSDP2 divides by the number of ranks unless told not to. Our gradients are sums over
            # targets, divided once by the global count.
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a tensor, or the tensor itself when it is whole."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def with_local_part(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """The tensor that is divided as the parameter is and has `local` as this rank's shard; `local`
    itself when the parameter is whole."""
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.size(),
        stride=parameter.stride(),
    )


def parameters_by_unit(module: nn.Module) -> list[nn.Parameter]:
    """The parameters, unit by unit of FSDP2, in the reverse of the order in which a backward pass
    completes them: a unit's own are complete after those of all units inside it. A model that is
    not sharded is one unit."""
    unit_of: dict[nn.Parameter, int] = {}
    for number, part in enumerate(module.modules()):
        if isinstance(part, FSDPModule):
            unit_of.update(dict.fromkeys(part.parameters(), number))
    return sorted(module.parameters(), key=lambda parameter: unit_of.get(parameter, 0))
