"""What went into a set and what was left out, counted while it is made."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict


class Statistics(BaseModel):
    """Adds up over shards. Frozen: sums make new ones."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lengths: tuple[int, ...] = ()
    """How many documents have 2^k to 2^(k+1)-1 tokens, for k = 0, 1, 2, ..."""
    num_unknown: int = 0
    """Tokens that stand for text the tokenizer does not know."""
    num_masked: int = 0
    """Tokens that do not count for the loss."""
    num_blank: int = 0
    """Documents of white space only."""
    num_duplicates: int = 0
    """Documents left out because the same text came before."""
    num_held_out: int = 0
    """Documents that belong to the other side of the held-out split."""
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
    """Documents by the power of two below their number of tokens; all lengths are positive."""
    if len(lengths) == 0:
        return ()
    # frexp gives x = m * 2^e with 0.5 <= m < 1, so e - 1 is the power of two below x, exactly.
    exponents = np.frexp(lengths.astype(np.float64))[1] - 1
    return tuple(np.bincount(exponents).tolist())


def _sum_of_lengths(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    size = max(len(first), len(second))
    padded = ([*counts, *[0] * (size - len(counts))] for counts in (first, second))
    return tuple(a + b for a, b in zip(*padded, strict=True))
