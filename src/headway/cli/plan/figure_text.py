"""Figures of a plan with their names, and for people: three digits, and the range in the same
unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.cli.output import short_count
from headway.plan.figure import Figure

Unit = Literal["bytes", "seconds", "usd", "share", "count", "number", "rate", "flops"]
"""`count`: as 6.74B; `number`: as 476,838; `rate`: as 0.0013."""
UNIT_SECONDS = (("days", 86400.0, 172800.0), ("hours", 3600.0, 7200.0), ("min", 60.0, 120.0))
"""Unit of a time, its seconds, and from how many seconds on it is used."""


@dataclass(frozen=True)
class PlanEntry:
    """A figure with its name: stable in JSON, readable in words."""

    key: str
    label: str
    figure: Figure
    unit: Unit
    remark: str = ""
    """Beside the figure on the screen."""
    is_detail: bool = False
    """Not on the screen, only in explanations and as data."""


@dataclass(frozen=True)
class PlanSection:
    """Figures that belong together."""

    key: str
    title: str
    entries: tuple[PlanEntry, ...]
    words: str = ""
    """A line below them on the screen."""


def shown(value: float, unit: Unit) -> str:
    return _in_unit_of(value, value, unit)


def ranged(figure: Figure, unit: Unit, like: float | None = None) -> str:
    """`142 days (121 to 168)`. `like`: a number in whose unit it is shown."""
    like = figure.value if like is None else like
    value = _in_unit_of(figure.value, like, unit)
    low = _in_unit_of(figure.low, like, unit, is_bare=True)
    high = _in_unit_of(figure.high, like, unit, is_bare=True)
    bare = _in_unit_of(figure.value, like, unit, is_bare=True)
    return value if low == high == bare else f"{value} ({low} to {high})"


def _in_unit_of(value: float, like: float, unit: Unit, is_bare: bool = False) -> str:
    match unit:
        case "bytes":
            sizes = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"))
            num_bytes, name = next((one for one in sizes if like >= one[0]), sizes[-1])
            return _with(f"{value / num_bytes:.1f}", name, is_bare)
        case "seconds":
            for name, factor, least in UNIT_SECONDS:
                if like >= least:
                    return _with(three_digits(value / factor), name, is_bare)
            if like < 0.1:
                return _with(three_digits(1000 * value), "ms", is_bare)
            return _with(three_digits(value), "s", is_bare)
        case "usd":
            return money(value)
        case "share":
            percent = f"{100 * value:.1f}" if like > 0.9 else f"{100 * value:.0f}"
            return _with(percent, "%", is_bare)
        case "flops":
            for name, factor in (("TFLOP", 1e12), ("GFLOP", 1e9)):
                if like >= factor:
                    return _with(three_digits(value / factor), name, is_bare)
            return _with(three_digits(value / 1e6), "MFLOP", is_bare)
        case "count":
            return short_count(value)
        case "rate":
            return f"{value:.2g}"
        case "number":
            if float(like).is_integer() or value < 0.005:
                return f"{value:,.0f}"
            return f"{value:.2f}" if value < 1 else three_digits(value)


def _with(number: str, unit: str, is_bare: bool) -> str:
    return number if is_bare else f"{number} {unit}"


def three_digits(value: float) -> str:
    """142; 14.2; 1.42; 1,420."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 0.095 or value == 0:
        return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    return f"{value:.2g}"


def money(usd: float) -> str:
    """$0.0042; $38.20; $872,000: three digits, and cents where they are among them."""
    if 0 < usd < 0.095:
        return f"${usd:.2g}"
    if usd < 1000:
        return f"${usd:,.2f}" if usd < 100 else f"${usd:,.0f}"
    rounded = float(f"{usd:.3g}")
    return f"${rounded:,.0f}"
