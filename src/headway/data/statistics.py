"""Counts of what went into a set and what was left out, made during preparation."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict


class Statistics(BaseModel):
    """Counts that can be added up over shards. Frozen: a sum is a new object."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lengths: tuple[int, ...] = ()
    """Number of documents with 2^k to 2^(k+1)-1 tokens, for k = 0, 1, 2, ..."""
    num_unknown: int = 0
    """Tokens for text that the tokenizer does not know."""
    num_masked: int = 0
    """Tokens that do not count for the loss."""
    num_blank: int = 0
    """Documents that contain only whitespace."""
    num_duplicates: int = 0
    """Documents left out because the same text occurred before."""
    num_held_out: int = 0
    """Documents on the other side of the held-out split."""
    num_dropped: int = 0
    """Records for which the user's transform returned None."""
    num_long: int = 0
    """Texts so long that they were encoded in pieces."""
    problems: dict[str, int] = {}
    """Records left out because they could not be read, by kind; problems.jsonl lists them."""

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(
            lengths=_sum_of_lengths(self.lengths, other.lengths),
            problems={
                kind: self.problems.get(kind, 0) + other.problems.get(kind, 0)
                for kind in sorted({*self.problems, *other.problems})
            },
            **{
                name: getattr(self, name) + getattr(other, name)
                for name in Statistics.model_fields
                if name.startswith("num_")
            },
        )

    @property
    def num_problems(self) -> int:
        return sum(self.problems.values())


def histogram(lengths: np.ndarray) -> tuple[int, ...]:
    """Number of documents by power of two, rounding lengths down; all lengths are positive."""
    if len(lengths) == 0:
        return ()
    # frexp gives x = m * 2^e with 0.5 <= m < 1, so 2^(e - 1) is exactly the largest power of two
    # not above x.
    exponents = np.frexp(lengths.astype(np.float64))[1] - 1
    return tuple(np.bincount(exponents).tolist())


def _sum_of_lengths(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    size = max(len(first), len(second))
    padded = ([*counts, *[0] * (size - len(counts))] for counts in (first, second))
    return tuple(a + b for a, b in zip(*padded, strict=True))
