"""One micro-batch: the tensors that an objective gets, and the loss that it returns."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

IGNORED = -100
"""A target that does not count: padding, text outside the loss mask, unmasked tokens."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch: always `micro` rows of `sequence_length` tokens; rows may be padding."""

    inputs: torch.Tensor
    """Token ids, int64 (micro, length)."""
    targets: torch.Tensor
    """Token ids to predict, int64 (micro, length); IGNORED where there is none."""
    is_real: torch.Tensor
    """bool (micro,): False for padding rows, whose targets are all IGNORED."""
    seed: int
    """Key of all randomness in this micro-batch: a function of (seed, step, micro-batch) alone."""


@dataclass(frozen=True)
class Loss:
    """What an objective returns: sums and integer counts, so any division of a batch is exact.

    The gradient is that of `sum`, divided once by the count over the whole global batch.
    """

    sum: torch.Tensor
    """Scalar, summed over the targets of the micro-batch."""
    count: torch.Tensor
    """int64 scalar: the number of targets in the sum."""
    extras: dict[str, torch.Tensor] = field(default_factory=dict)
    """More sums to record, each divided by the same count."""
