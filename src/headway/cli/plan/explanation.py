"""headway plan --explain: every figure with its range, what it rests on, and how it comes about."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.cli.plan.figure_text import ranged
from headway.cli.plan.screen import COLUMNS

if TYPE_CHECKING:
    from headway.cli.plan.run_plan import RunPlan
    from headway.cli.terminal import Line

BASES = {
    "counted": "exact arithmetic",
    "given": "given by you",
    "measured": "measured by a run or a benchmark that is named",
    "published": "copied from a page that is named",
    "fitted": "fitted to published runs",
    "assumed": "a default of Headway's, which you can replace",
}


def explanation(plan: RunPlan) -> Iterator[Line]:
    """After the screen."""
    bases = []
    for fleet in plan.fleets:
        title = f" on {fleet.fleet}" if len(plan.fleets) > 1 else ""
        for section in ((plan.model,) if fleet is plan.fleets[0] else ()) + fleet.sections:
            if not section.entries:
                continue
            yield []
            yield [(f"{section.title}{title if section is not plan.model else ''}: why", "bold")]
            for entry in section.entries:
                bases.append(entry.figure.basis)
                value = ranged(entry.figure, entry.unit)
                yield [(f"  {entry.label}: {value}", ""), (f"  {entry.figure.basis}", "cyan")]
                for line in textwrap.wrap(entry.figure.reason, COLUMNS - 6):
                    yield [(f"      {line}", "dim")]
    yield []
    yield [("What figures rest on", "bold")]
    for basis, words in BASES.items():
        if basis in bases:
            yield [(f"  {basis:<16}", "cyan"), (words, "")]
