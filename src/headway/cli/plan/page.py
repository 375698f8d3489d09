"""headway plan --html: time against money of the plans that are compared, as one page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import TYPE_CHECKING

from headway.cli.plan.comparison import ComparedPlans, memory_words
from headway.cli.plan.figure_text import money, ranged, shown

if TYPE_CHECKING:
    from headway.cli.plan.run_plan import FleetPlan
    from headway.plan.figure import Figure

WIDTH, HEIGHT = 900, 480
LEFT, RIGHT, TOP, BOTTOM = 120, 40, 20, 64
PALETTE = (
    *("#2f81f7", "#e16f24", "#2da44e", "#a475f9"),
    *("#d4a72c", "#e85aad", "#39c5cf", "#8c959f"),
)
STYLE = """
svg { width: 100%; height: auto; background: var(--panel); border: 1px solid var(--line);
  border-radius: 6px; }
svg text { fill: var(--fg); font: 12px system-ui, sans-serif; }
svg text.dim { fill: var(--dim); }
svg line.grid { stroke: var(--line); }
"""


@dataclass(frozen=True)
class Scale:
    """Logarithmic, from values to pixels."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> Iterator[float]:
        """1, 2 and 5 of each power of ten; powers alone if they are many."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        factors = (1, 2, 5) if last - first <= 3 else (1,)
        for power in range(first, last + 1):
            for factor in factors:
                tick = float(factor * 10**power)
                if self.low <= tick <= self.high:
                    yield tick


@dataclass(frozen=True)
class Point:
    plan: FleetPlan
    days: Figure
    cost: Figure


def comparison_page(found: ComparedPlans) -> str:
    plan = found.plan
    title = f"{plan.asked.title}: time against money"
    style = (resources.files("headway.report") / "assets" / "report.css").read_text("utf-8")
    has_money = any(one.usd for one in found.good)
    points = [point for one in found.good if (point := _point(one, has_money)) is not None]
    axis = "dollars in all" if has_money else "device hours in all: no price is known"
    parts = [f"<h1>{escape(title)}</h1>", _chart(points, axis, found)] if points else []
    parts += ["<h2>Plans</h2>", _table(found, has_money)]
    parts.append(
        '<p class="dim">A point is the estimate, the lines through it enclose the truth in about '
        "nine cases out of ten. Made by headway plan; headway plan --explain says how each figure "
        "comes about.</p>"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{style}{STYLE}</style>\n</head>\n"
        "<body>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def _point(one: FleetPlan, has_money: bool) -> Point | None:
    if one.seconds is None or (has_money and one.usd is None):
        return None
    days = one.seconds.times(1 / 86400, one.seconds.reason)
    hours = one.seconds.times(one.fleet.num_devices / 3600, "")
    return Point(one, days, one.usd if has_money and one.usd is not None else hours)


def _scale(figures: Sequence[Figure], begin: float, end: float) -> Scale:
    low = min(figure.low or figure.value for figure in figures)
    high = max(figure.high for figure in figures)
    return Scale(low / 1.3, high * 1.3, begin, end)


def _chart(points: Sequence[Point], axis: str, found: ComparedPlans) -> str:
    x = _scale([point.days for point in points], LEFT, WIDTH - RIGHT)
    y = _scale([point.cost for point in points], HEIGHT - BOTTOM, TOP)
    kinds = list(dict.fromkeys(_kind(point.plan) for point in points))
    drawn = [*_grid(x, y, axis)]
    for kind, colour in zip(kinds, PALETTE * (1 + len(kinds) // len(PALETTE)), strict=False):
        own = [point for point in points if _kind(point.plan) == kind]
        path = " ".join(f"{x.at(p.days.value):.1f},{y.at(p.cost.value):.1f}" for p in own)
        drawn.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-opacity="0.5"/>'
        )
        for point in own:
            drawn += _drawn_point(point, x, y, colour, found)
    drawn += _legend(kinds)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(drawn)}</svg>'


def _drawn_point(
    point: Point, x: Scale, y: Scale, colour: str, found: ComparedPlans
) -> Iterator[str]:
    at_x, at_y = x.at(point.days.value), y.at(point.cost.value)
    thin = f'stroke="{colour}" stroke-opacity="0.35"'
    low, high = x.at(point.days.low or point.days.value), x.at(point.days.high)
    yield f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{at_y:.1f}" y2="{at_y:.1f}" {thin}/>'
    low, high = y.at(point.cost.low or point.cost.value), y.at(point.cost.high)
    yield f'<line x1="{at_x:.1f}" x2="{at_x:.1f}" y1="{low:.1f}" y2="{high:.1f}" {thin}/>'
    words = f"{point.plan.fleet}: {_time(point.plan)}"
    words += f", {money(point.plan.usd.value)}" if point.plan.usd else ""
    marks = found.marks(point.plan)
    if marks:
        yield (
            f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="9" fill="none" stroke="{colour}" '
            'stroke-width="2"/>'
        )
    yield (
        f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="5" fill="{colour}"><title>{escape(words)}'
        "</title></circle>"
    )
    label = f"{point.plan.fleet.num_devices}" + (f" ({', '.join(marks)})" if marks else "")
    yield f'<text x="{at_x + 11:.1f}" y="{at_y - 7:.1f}">{escape(label)}</text>'


def _grid(x: Scale, y: Scale, axis: str) -> Iterator[str]:
    for tick in x.ticks():
        at = x.at(tick)
        words = shown(tick * 86400, "seconds").replace(".00", "")
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        middle = f'text-anchor="middle" y="{HEIGHT - BOTTOM + 18}"'
        yield f'<text class="dim" x="{at:.1f}" {middle}>{words}</text>'
    for tick in y.ticks():
        at = y.at(tick)
        words = money(tick).replace(".00", "") if axis.startswith("dollars") else f"{tick:,.0f}"
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        place = f'x="{LEFT - 8}" y="{at + 4:.1f}"'
        yield f'<text class="dim" text-anchor="end" {place}>{words}</text>'
    yield (
        f'<text class="dim" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 22}" '
        'text-anchor="middle">from start to end '
        "(numbers at points: devices)</text>"
    )
    yield (
        f'<text class="dim" transform="translate(16 {HEIGHT / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(axis)}</text>'
    )


def _legend(kinds: Sequence[str]) -> Iterator[str]:
    at = float(LEFT)
    for kind, colour in zip(kinds, PALETTE * (1 + len(kinds) // len(PALETTE)), strict=False):
        yield f'<circle cx="{at:.0f}" cy="{HEIGHT - 8}" r="4" fill="{colour}"/>'
        yield f'<text x="{at + 8:.0f}" y="{HEIGHT - 4}">{escape(kind)}</text>'
        at += 24 + 7.2 * len(kind)


def _table(found: ComparedPlans, has_money: bool) -> str:
    names = ("devices", "GiB of a device", "time", "cost" if has_money else "device hours", "")
    rows = []
    for one in found.plan.fleets:
        usd = ranged(one.usd, "usd") if one.usd else ""
        cost = usd if has_money else f"{one.device_hours or 0:,.0f}"
        marks = ", ".join(found.marks(one))
        name = str(one.fleet)
        rows.append((name, memory_words(one), _time(one), cost, marks))
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _time(one: FleetPlan) -> str:
    return ranged(one.seconds, "seconds") if one.seconds else ""


def _kind(one: FleetPlan) -> str:
    return one.fleet.device.name if one.fleet.device else "cpu"
