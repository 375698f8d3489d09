"""Curves in text, drawn with braille characters: each is a cell of two by four dots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from headway.report.series import Series

BLANK = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bit of each dot in a cell, by row and column."""

Cell = tuple[str, int | None]
"""A character, and the number of the curve that it belongs to."""
Point = tuple[int, int]


def text_plot(
    curves: Sequence[Series], x: tuple[float, float], y: tuple[float, float], size: Point
) -> list[list[Cell]]:
    """Rows of cells, the highest first. `x` and `y`: what is at the edges; `size`: columns and rows
    of characters. Where curves meet, the later one has the cell."""
    columns, rows = size
    bits = [[0] * columns for _ in range(rows)]
    owner: list[list[int | None]] = [[None] * columns for _ in range(rows)]
    for number, curve in enumerate(curves):
        for dot_x, dot_y in _dots(_placed(curve, x, y, (2 * columns, 4 * rows))):
            row, column = rows - 1 - dot_y // 4, dot_x // 2
            bits[row][column] |= DOTS[3 - dot_y % 4][dot_x % 2]
            owner[row][column] = number
    return [
        [(chr(BLANK + dots) if dots else " ", who) for dots, who in zip(*row, strict=True)]
        for row in zip(bits, owner, strict=True)
    ]


def value_range(curves: Sequence[Series]) -> tuple[float, float]:
    """Lowest and highest value; a constant is in the middle."""
    values = [value for _, ys in curves for value in ys if value is not None]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low == high:
        return low - (abs(low) or 1.0), high + (abs(high) or 1.0)
    return low, high


def _placed(
    curve: Series, x: tuple[float, float], y: tuple[float, float], dots: Point
) -> list[Point]:
    def place(value: float, edges: tuple[float, float], most: int) -> int:
        share = (value - edges[0]) / ((edges[1] - edges[0]) or 1.0)
        return min(most - 1, max(0, round(share * (most - 1))))

    return [
        (place(at, x, dots[0]), place(value, y, dots[1]))
        for at, value in zip(*curve, strict=True)
        if value is not None
    ]


def _dots(points: Sequence[Point]) -> Iterator[Point]:
    """The points and the lines between them."""
    yield from points[:1]
    for (from_x, from_y), (to_x, to_y) in pairwise(points):
        steps = max(abs(to_x - from_x), abs(to_y - from_y), 1)
        for step in range(1, steps + 1):
            yield (
                from_x + round(step * (to_x - from_x) / steps),
                from_y + round(step * (to_y - from_y) / steps),
            )
