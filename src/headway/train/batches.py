"""What a slice is made of: the tensors an objective gets, and the loss it gives back."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

IGNORED = -100
"""A target that counts for nothing: padding, text outside the loss mask, unmasked tokens."""


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
