"""A forward pass beside training that training does not notice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from headway.train.device import is_accelerator


@contextmanager
def undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """No gradients, evaluation mode, nothing compiled; afterwards modes and random state are as
    before."""
    modes = [(module, module.training) for module in model.modules()]
    devices = [device] if is_accelerator(device) else []
    model.eval()
    try:
        # A compiled block was compiled without hooks that look at it, and for one shape.
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=devices, device_type=device.type),
            torch.compiler.set_stance("force_eager"),
        ):
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        for part in model.modules():
            if isinstance(part, FSDPModule):
                part.reshard()  # the backward pass does it otherwise, and there was none
