"""Words go to stderr, data to stdout; everything is readable without colour."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headway.cli.terminal import has_colour, labelled

if TYPE_CHECKING:
    from headway.state.goodput import Goodput
    from headway.state.spent_money import Spending


def say(text: str = "") -> None:
    print(labelled(text, has_colour(sys.stderr)), file=sys.stderr, flush=True)


def hint(*lines: str) -> None:
    for line in lines:
        say(f"hint: {line}")


def warn(text: str) -> None:
    say(f"warning: {text}")


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def short_count(number: float) -> str:
    """1234567 -> 1.23M."""
    for factor, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"), (1, "")):
        # Three digits, rounded first: 999,600 is 1M and not 1e+03k.
        if float(f"{number:.3g}") >= factor:
            return f"{float(f'{number:.3g}') / factor:.3g}{letter}"
    return f"{number:.3g}"


def short_bytes(number: int) -> str:
    """1234567 -> 1.23 MB."""
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= factor:
            amount = number / factor
            return f"{amount:.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"
    return f"{number} bytes"


def short_loss(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.4f}"


def short_time(seconds: float) -> str:
    """75 -> 1:15; 4000 -> 1:06:40; 200000 -> 2d 7h."""
    whole = round(seconds)
    if whole >= 86400:
        return f"{whole // 86400}d {whole % 86400 // 3600}h"
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def short_age(seconds: float) -> str:
    """75 -> 1m; 4000 -> 1h; 200000 -> 2d. As kubectl writes ages."""
    for factor, letter in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= factor:
            return f"{int(seconds // factor)}{letter}"
    return f"{max(0, int(seconds))}s"


def compiled_text(event: Mapping[str, Any]) -> str:
    """What a node compiled, and what it found compiled."""
    return (
        f"{event['from_cache']} graphs from the cache, {event['compiled']} compiled; first step "
        f"after {event['first_step_seconds']:.0f} s"
    )


def goodput_text(found: Goodput) -> str:
    """Share of time spent on learning, and the largest causes of the rest."""
    causes = sorted(found.lost_seconds.items(), key=lambda pair: -pair[1])
    worst = ", ".join(
        f"{cause} {short_time(seconds)}" for cause, seconds in causes[:3] if seconds >= 1
    )
    total = short_time(found.total_seconds)
    return f"{found.ratio:.1%} of {total}" + (f"; the rest went to {worst}" if worst else "")


def spending_text(found: Spending) -> str:
    """Money that a run has cost, and what its nodes cost now."""
    from headway.spec.price_config import dollars

    budget = f" of {dollars(found.budget_usd)}" if found.budget_usd is not None else ""
    rate = f", at {dollars(found.usd_per_hour)} an hour now" if found.usd_per_hour else ""
    is_unsure = any(one.capacity == "unknown" for one in found.rates)
    most = " (at most: machines whose label cannot be read count as on demand)" * is_unsure
    return f"{dollars(found.usd)}{budget}{rate}{most}"
