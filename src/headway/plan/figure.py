"""An estimated number with its uncertainty, its reason and what it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Basis = Literal["counted", "measured", "fitted", "published", "assumed", "given"]
"""What a number rests on. `counted`: exact arithmetic. `measured`: by a run or a benchmark.
`fitted`: to published runs. `published`: copied from a page that is named. `assumed`: a default of
Headway's, which the user can replace. `given`: by the user."""

Verdict = Literal["fits", "may not fit", "does not fit"]
WORST_LAST: Sequence[Verdict] = ("fits", "may not fit", "does not fit")

_WEAKEST_LAST: Sequence[Basis] = (
    *("counted", "given", "measured"),
    *("published", "fitted", "assumed"),
)


@dataclass(frozen=True)
class Figure:
    """`low` and `high` enclose the true value in about nine cases out of ten."""

    value: float
    low: float
    high: float
    basis: Basis
    reason: str
    """How it comes about, in one line, with its numbers."""

    @classmethod
    def exact(cls, value: float, reason: str, basis: Basis = "counted") -> Figure:
        return cls(value, value, value, basis, reason)

    @classmethod
    def within(cls, value: float, share: float, basis: Basis, reason: str) -> Figure:
        """Uncertain by this share, up and down."""
        return cls(value, value * (1 - share), value * (1 + share), basis, reason)

    def times(self, factor: float, reason: str) -> Figure:
        assert factor >= 0
        low, high = self.low * factor, self.high * factor
        return Figure(self.value * factor, low, high, self.basis, reason)


def weakest(figures: Sequence[Figure]) -> Basis:
    """What a number that is made of these rests on."""
    return max((figure.basis for figure in figures), key=_WEAKEST_LAST.index)


def combined(function: Callable[..., float], inputs: Mapping[str, Figure], reason: str) -> Figure:
    """What `function` makes of figures that do not depend on each other, passed by name. Each is
    varied alone, and the differences add up as independent errors do: all of them at their worst at
    once would be far rarer than one time in ten."""
    values = {name: figure.value for name, figure in inputs.items()}
    middle = function(**values)
    below = above = 0.0
    for name, figure in inputs.items():
        ends = [function(**(values | {name: end})) - middle for end in (figure.low, figure.high)]
        below += min(0.0, *ends) ** 2
        above += max(0.0, *ends) ** 2
    basis = weakest(list(inputs.values())) if inputs else "counted"
    return Figure(middle, middle - math.sqrt(below), middle + math.sqrt(above), basis, reason)


def verdict_of(needs: Sequence[Figure], room: Figure | None) -> Verdict | None:
    """Whether each of them fits; None if the room is not known. It does not if the least that it
    can be is too much, and it fits only if the most that it can be does."""
    if room is None:
        return None
    if max(need.high for need in needs) <= room.low:
        return "fits"
    return "does not fit" if max(need.low for need in needs) > room.high else "may not fit"
