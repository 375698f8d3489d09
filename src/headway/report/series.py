"""Series of numbers, thinned out so that a page of a million steps opens in a second."""

from __future__ import annotations

from collections.abc import Sequence

MOST_POINTS = 3000
"""About two for each pixel of a wide screen."""
DIGITS = 5

Series = tuple[list[float], list[float | None]]
"""x and y."""


def thinned(x: Sequence[float], y: Sequence[float | None]) -> Series:
    """Of every stretch the first, lowest, highest and last point: spikes stay visible."""
    if len(x) <= MOST_POINTS:
        return list(x), [_rounded(value) for value in y]
    kept: list[int] = []
    stretches = MOST_POINTS // 4
    for stretch in range(stretches):
        begin, end = len(x) * stretch // stretches, len(x) * (stretch + 1) // stretches
        known = [at for at in range(begin, end) if y[at] is not None]
        chosen = {begin, end - 1}
        if known:
            chosen |= {
                min(known, key=lambda at: y[at] or 0.0),
                max(known, key=lambda at: y[at] or 0.0),
            }
        kept += sorted(chosen)
    return [x[at] for at in kept], [_rounded(y[at]) for at in kept]


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
