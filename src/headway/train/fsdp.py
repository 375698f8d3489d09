"""Sharding of one copy of the model over the ranks of a node (FSDP2)."""

from __future__ import annotations

import torch
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
    for part in [*built.blocks, built.module]:
        fully_shard(part, mesh=placement.shard_mesh, mp_policy=policy)
    for part in built.module.modules():
        if isinstance(part, FSDPModule):
            # FSDP2 divides by the number of ranks unless told not to. Our gradients are sums over
            # targets, divided once by the global count.
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a tensor, or the tensor itself when it is whole."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
