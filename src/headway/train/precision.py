"""Which numbers a step computes with. Weights, gradients and optimizer state stay in fp32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

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

    def factor(self, slice_tokens: int) -> float:
        """What a slice's loss sum is multiplied with before its backward pass.

        Losses are sums over a slice's tokens, and a sum times 2^16 would not fit into fp16; so it
        is first brought to the size of a mean.
        """
        return self.scale / slice_tokens if self.precision == "fp16" else 1.0

    def update(self, finite: bool) -> None:
        if self.precision != "fp16":
            return
        if not finite:
            self.scale, self.good_steps = max(1.0, self.scale / 2), 0
            return
        self.good_steps += 1
        if self.good_steps == GROWTH_STEPS:
            self.scale, self.good_steps = min(MAX_SCALE, self.scale * 2), 0


def computing(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward pass."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=COMPUTE_DTYPE[precision])
