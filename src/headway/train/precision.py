"""Which numbers a step computes with. Weights, gradients and optimizer state stay in fp32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

from headway.errors import BadInput
from headway.train.device import has_bf16_units, name_of

Precision = Literal["bf16", "fp16", "fp32"]
COMPUTE_DTYPE: dict[Precision, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}

INITIAL_SCALE = 2.0**16
GROWTH_STEPS = 2000
MAX_SCALE = 2.0**24


@dataclass
class LossScale:
    """Keeps fp16 gradients inside the range of fp16; 1 and unmoved for the other precisions.

    It moves on reduced values only (was the global gradient finite?), so every worker has the same
    scale without asking. It is saved with the checkpoint.
    """

    precision: Precision
    scale: float = 1.0
    good_steps: int = 0

    def __post_init__(self) -> None:
        if self.precision == "fp16" and self.scale == 1.0:
            self.scale = INITIAL_SCALE

    def factor(self, micro_batch_tokens: int) -> float:
        """The factor of a micro-batch's loss sum before its backward pass.

        Losses are sums over the tokens of a micro-batch, and a sum times 2^16 would not fit into
        fp16; so it is first brought to the size of a mean.
        """
        return self.scale / micro_batch_tokens if self.precision == "fp16" else 1.0

    def update(self, finite: bool) -> None:
        if self.precision != "fp16":
            return
        if not finite:
            self.scale, self.good_steps = max(1.0, self.scale / 2), 0
            return
        self.good_steps += 1
        if self.good_steps == GROWTH_STEPS:
            self.scale, self.good_steps = min(MAX_SCALE, self.scale * 2), 0


def require_precision(precision: Precision, device: torch.device) -> None:
    """Raises BadInput if the device, which is the current one, could only emulate it. `headway run`
    knows some devices by name; this knows all."""
    if precision == "bf16" and not has_bf16_units(device):
        raise BadInput(
            f"precision: bf16 requested, but the {name_of(device)} has no bf16 units",
            "to train in fp16: --set precision=fp16",
        )


def computing(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward pass."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=COMPUTE_DTYPE[precision])
