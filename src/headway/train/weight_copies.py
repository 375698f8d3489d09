"""The weights that an unsharded model computes with: copies of the fp32 ones in the run's
precision.

FSDP2 gathers the weights of a sharded model in that precision, so activations between layers have
it as well, and so have a micro-batch's gradients, which are added up in fp32. The same is done
here, so that a run may be sharded in one start and whole in the next without a change of its
arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from headway.train.device import is_accelerator
from headway.train.models import BuiltModel
from headway.train.precision import COMPUTE_DTYPE, Precision
from headway.train.world import RankPlacement

VERSION = 2
"""Of the arithmetic, written with each checkpoint."""
NORMS = (nn.LayerNorm, nn.GroupNorm)
AT_ONCE = 2**63 - 1
"""Sequence number of an autograd node that runs as soon as its inputs are ready."""


class WeightCopies:
    """Copies of the parameters of one model."""

    def __init__(self, model: nn.Module, precision: Precision, is_sharded: bool) -> None:
        self._dtype = COMPUTE_DTYPE[precision]
        self._places: list[tuple[nn.Module, str, nn.Parameter]] = []
        """Modules and names of each parameter; a tied one has several."""
        if precision != "fp32" and not is_sharded:
            self._places = [
                (module, name, parameter)
                for module in model.modules()
                if not isinstance(module, _BatchNorm)  # its statistics are fp32, and must match
                for name, parameter in module.named_parameters(
                    recurse=False, remove_duplicate=False
                )
                if parameter.is_floating_point()
            ]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The model computes with copies of its weights as they are now. For forward and backward
        passes: recomputed activations need them in the latter. Gradients come to the parameters
        themselves, where each backward pass is added in fp32."""
        copies: dict[nn.Parameter, torch.Tensor] = {}
        for _, _, parameter in self._places:
            if parameter not in copies:
                copies[parameter] = copy = parameter.to(self._dtype)
                if copy.grad_fn is not None:
                    # Backward runs what was made last first, and copies are made before anything
                    # else: no gradient would be there, to be sent, before the end of the pass.
                    copy.grad_fn._set_sequence_nr(AT_ONCE)  # type: ignore[attr-defined]
        for module, name, parameter in self._places:
            # Not by setattr: a parameter's place takes parameters only.
            module._parameters[name] = copies[parameter]  # type: ignore[assignment]
        try:
            yield
        finally:
            for module, name, parameter in self._places:
                module._parameters[name] = parameter


def cast_inputs(built: BuiltModel, precision: Precision, placement: RankPlacement) -> None:
    """Casts the inputs of each block to the precision of its weights, as FSDP2 does with its units.
    On CPUs normalization needs that as well; elsewhere autocast does it."""
    if precision == "fp32":
        return
    dtype = COMPUTE_DTYPE[precision]

    def cast(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if is_float else value

    def cast_all(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return tree_map(cast, args), tree_map(cast, kwargs)

    if placement.shard_mesh is None:
        for part in {*built.blocks, built.module}:
            part.register_forward_pre_hook(cast_all, with_kwargs=True)
    if not is_accelerator(placement.device):
        for module in built.module.modules():
            if isinstance(module, NORMS) and module.weight is not None:
                module.register_forward_pre_hook(lambda _, args: tree_map(cast, args))
