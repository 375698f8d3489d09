"""What a terminal shows of a training run: a bar and the newest figures, as far as they fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from headway.cli.output import short_count, short_loss, short_time
from headway.cli.terminal import Line, Piece

LEVELS = "▁▂▃▄▅▆▇█"
TREND_CELLS = 12
KEPT_LOSSES = 256
LEAST_BAR, MOST_BAR = 8, 100
MOST_ROWS = 2
"""Rows of figures below the bar."""
GAP = "  "


@dataclass
class Frame:
    """Figures of a run at one moment. None: not known (yet)."""

    step: int
    total_steps: int
    loss: float | None
    trend: Sequence[float] = ()
    """Losses of the newest half of the steps, oldest first."""
    lr: float | None = None
    grad_norm: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    elapsed_seconds: float | None = None
    left_seconds: float | None = None
    evaluations: Mapping[str, float | None] = field(default_factory=dict)
    workers: int | None = None
    wanted_workers: int | None = None


def frame_lines(frame: Frame, width: int) -> list[Line]:
    return [_bar_line(frame, width), *_rows(_figures(frame), width)]


def _bar_line(frame: Frame, width: int) -> Line:
    share = min(1.0, frame.step / frame.total_steps) if frame.total_steps else 1.0
    pieces: list[Piece] = [(f" {int(100 * share)}%", "bold")]
    pieces += [(f"{GAP}step ", "dim"), (f"{frame.step}/{frame.total_steps}", "")]
    elapsed: list[Piece] = []
    if frame.elapsed_seconds is not None:
        elapsed = [(GAP + short_time(frame.elapsed_seconds), ""), (" elapsed", "dim")]
    left: list[Piece] = []
    if frame.left_seconds is not None:
        left = [(GAP + short_time(frame.left_seconds), "bold"), (" left", "dim")]
    if _length([*pieces, *elapsed, *left]) <= width:
        pieces += elapsed
    pieces += left
    room = min(MOST_BAR, width - _length(pieces))
    if room < LEAST_BAR:
        return pieces
    done = round(share * room)
    return [("━" * done, "cyan"), ("─" * (room - done), "dim"), *pieces]


def _figures(frame: Frame) -> Iterable[list[Piece]]:
    """Each figure with its name, the more important ones first."""
    if frame.tokens_per_second is None:
        yield [("waiting for the first step", "dim")]
        return
    loss: list[Piece] = [("loss ", "dim"), (short_loss(frame.loss), "bold")]
    if len(frame.trend) > 1:
        loss += [(f" {sparkline(frame.trend)}", "cyan")]
    yield loss
    for name, value in frame.evaluations.items():
        yield [(f"{name} ", "dim"), (short_loss(value), "bold")]
    yield [(short_count(frame.tokens_per_second), ""), (" tokens/s", "dim")]
    if frame.workers is not None:
        yield [_workers(frame.workers, frame.wanted_workers)]
    if frame.lr is not None:
        yield [("lr ", "dim"), (f"{frame.lr:.2e}", "")]
    if frame.grad_norm is not None:
        yield [("grad norm ", "dim"), (f"{frame.grad_norm:.3g}", "")]
    if frame.mfu is not None:
        yield [(f"{frame.mfu:.1%}", ""), (" MFU", "dim")]


def _workers(workers: int, wanted: int | None) -> Piece:
    if wanted is not None and workers < wanted:
        return f"{workers} of {wanted} workers", "yellow"
    return f"{workers} worker{'s' if workers > 1 else ''}", ""


def _rows(figures: Iterable[list[Piece]], width: int) -> list[Line]:
    """As many of them as fit, in order."""
    rows: list[list[Piece]] = [[]]
    for figure in figures:
        gap = len(GAP) if rows[-1] else 0
        if rows[-1] and _length(rows[-1]) + gap + _length(figure) > width:
            if len(rows) == MOST_ROWS:
                continue  # a shorter one may still fit
            rows.append([])
        rows[-1] += [(GAP, ""), *figure] if rows[-1] else figure
    return [*rows]


def _length(pieces: Sequence[Piece]) -> int:
    return sum(len(text) for text, _ in pieces)


class Trend:
    """Losses so far, thinned out: each point is the mean of as many steps as all others."""

    def __init__(self) -> None:
        self._points: list[float] = []
        self._steps_of_point = 1
        self._sum, self._count = 0.0, 0

    def add(self, loss: float | None) -> None:
        if loss is None:
            return
        self._sum += loss
        self._count += 1
        if self._count < self._steps_of_point:
            return
        self._points.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self._points) == KEPT_LOSSES:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [(one + other) / 2 for one, other in pairs]
            self._steps_of_point *= 2

    def newest_half(self, cells: int = TREND_CELLS) -> list[float]:
        """Means of the newest half, in at most so many cells: the first steps would flatten it."""
        half = self._points[len(self._points) // 2 :]
        newest = half if len(half) >= cells else self._points[-cells:]
        count = min(cells, len(newest))
        edges = [len(newest) * number // count for number in range(count + 1)] if count else [0]
        return [sum(newest[low:high]) / (high - low) for low, high in pairwise(edges)]


def sparkline(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    if high == low:
        return LEVELS[len(LEVELS) // 2] * len(values)
    top = len(LEVELS) - 1
    return "".join(LEVELS[round(top * (value - low) / (high - low))] for value in values)
