"""What a slice is made of: the tensors an objective gets, and the loss it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

IGNORED = -100
"""A target that counts for nothing: padding, text outside the loss mask, unmasked tokens."""


def seed_generators(seed: int, device: torch.device) -> None:
    """Of the CPU and of this worker's device. torch.manual_seed also seeds those of all devices of
    all other kinds, which takes 2 ms; the numbers drawn here are the same."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)  # of the current device, which is this worker's


@dataclass(frozen=True)
class Batch:
    """One slice: always `micro` rows of `sequence_length` tokens; rows may be padding."""

    inputs: torch.Tensor
    """Token ids, int64 (micro, length)."""
    targets: torch.Tensor
    """Token ids to predict, int64 (micro, length); IGNORED where there is none."""
    is_real: torch.Tensor
    """bool (micro,): False for padding rows, whose targets are all IGNORED."""
    seed: int
    """Key of all randomness in this slice: a function of (seed, step, slice) alone."""


@dataclass(frozen=True)
class Loss:
    """What an objective returns: sums and integer counts, so any division of a batch is exact.

    The gradient is that of `sum`, divided once by the count over the whole global batch.
    """

    sum: torch.Tensor
    """Scalar, summed over the targets of the slice."""
    count: torch.Tensor
    """int64 scalar: how many targets the sum is over."""
    extras: dict[str, torch.Tensor] = field(default_factory=dict)
    """Further sums to be recorded, each divided by the same count."""
