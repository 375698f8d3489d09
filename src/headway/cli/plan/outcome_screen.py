"""headway plan RUN: what was planned beside what is measured so far, and when it will end."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headway.cli.plan.figure_text import Unit, ranged, shown
from headway.cli.plan.screen import COLUMNS

if TYPE_CHECKING:
    from headway.cli.terminal import Line, Style
    from headway.plan.outcome import Measured, OutcomeRow, PlanRecord

LABEL, PLANNED, MEASURED = 22, 27, 11
UNITS: dict[str, Unit] = {"count": "number", "per_second": "count"}
"""Of a row, where it has another name here."""


def outcome_screen(
    name: str, record: PlanRecord | None, measured: Measured, rows: Sequence[OutcomeRow]
) -> Iterator[Line]:
    total = f" of {measured.total_steps:,}" if measured.total_steps is not None else ""
    where = f", planned for {record.place}" if record is not None else ""
    yield [(f"{name}: {measured.steps:,}{total} steps{where}", "bold")]
    yield []
    yield [(_row("", "planned", "so far"), "dim")]
    for row in rows:
        yield from _row_lines(row)
    if record is None:
        yield []
        yield [("  It was started without a plan: there is nothing to compare with.", "dim")]


def outcome_facts(
    name: str, record: PlanRecord | None, measured: Measured, rows: Sequence[OutcomeRow]
) -> dict[str, Any]:
    return {
        "run": name,
        "steps": measured.steps,
        "total_steps": measured.total_steps,
        "place": None if record is None else record.place,
        "rows": {
            row.key: {
                "planned": None if row.planned is None else asdict(row.planned),
                "measured": row.measured,
                "ratio": row.ratio,
                "why": row.why,
            }
            for row in rows
        },
    }


def _row_lines(row: OutcomeRow) -> Iterator[Line]:
    unit = UNITS.get(row.unit, row.unit)
    planned = "-" if row.planned is None else ranged(row.planned, unit)  # type: ignore[arg-type]
    measured = "-" if row.measured is None else shown(row.measured, unit)  # type: ignore[arg-type]
    is_good = row.why in ("as planned", "")
    style: Style = "" if is_good else "yellow"
    short = row.why if len(row.why) <= COLUMNS - 2 - LABEL - PLANNED - MEASURED else ""
    yield [(_row(row.what, planned, measured), ""), (short, style)]
    if not short and row.why:
        for line in textwrap.wrap(row.why, COLUMNS - 6):
            yield [(f"      {line}", "dim")]


def _row(what: str, planned: str, measured: str) -> str:
    return f"  {what:<{LABEL}}{planned:<{PLANNED}}{measured:<{MEASURED}}"
