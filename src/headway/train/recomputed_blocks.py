"""Blocks whose activations are recomputed in the backward pass, and whose inputs may wait for it in
the host's memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from headway.train.device import is_accelerator

Packed = torch.Tensor | tuple[torch.device, torch.Tensor]


def recompute_blocks(blocks: list[nn.Module], *, offload: bool = False) -> None:
    """Activation checkpointing: the activations of a block are dropped after the forward pass and
    recomputed in the backward pass. With `offload` its inputs go to the host's memory meanwhile."""

    def recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            # torch saves a block's inputs as it would an operator's, before it hides what is saved
            # inside: so these hooks see the inputs and nothing else.
            with _inputs_on_host() if offload else nullcontext():
                return checkpoint(forward, *args, use_reentrant=False, **kwargs)

        return run

    for block in blocks:
        # Replacing `forward` and not the module keeps parameter names, so checkpoints and exports
        # do not depend on this choice.
        block.forward = recomputed(block.forward)


def _inputs_on_host() -> AbstractContextManager[Any]:
    return saved_tensors_hooks(_to_host, _from_host)


def _to_host(tensor: torch.Tensor) -> Packed:
    # Masks and positions are shared by all blocks: one of each is on the device.
    if not (is_accelerator(tensor.device) and tensor.is_floating_point() and tensor.requires_grad):
        return tensor
    # Both copies are in the order of the device's stream, so nobody waits for either: the first
    # has read the device's memory before that is used again, and ends before the second begins.
    # torch does not give pinned memory to anyone else while a copy from it is due.
    on_host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    on_host.copy_(tensor, non_blocking=True)
    return tensor.device, on_host


def _from_host(packed: Packed) -> torch.Tensor:
    if isinstance(packed, torch.Tensor):
        return packed
    device, on_host = packed
    return on_host.to(device, non_blocking=True)
