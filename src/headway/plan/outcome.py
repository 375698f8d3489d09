"""A plan beside what came of it: rows of what was planned, what is measured, and why they differ.

The plan that a run was started with is kept in its run directory (`plan.json`). It holds figures by
name; those in `Measured` are compared, whichever of them the plan has. Runs whose model only their
own code knows have few.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from headway.plan.figure import Figure

PLAN = "plan.json"
VERSION = 1

RowUnit = Literal["seconds", "share", "count", "bytes", "usd", "per_second"]


@dataclass(frozen=True)
class PlanRecord:
    """The plan of one start."""

    time: str
    """Of the start."""
    place: str
    """Devices and nodes, for people: `8 nodes of H100:8`."""
    figures: Mapping[str, Figure]
    """By the names of `headway plan --json`."""

    def as_text(self) -> str:
        figures = {name: asdict(figure) for name, figure in self.figures.items()}
        record = {"version": VERSION, "time": self.time, "place": self.place, "figures": figures}
        return json.dumps(record, indent=2) + "\n"

    @classmethod
    def from_text(cls, text: str | bytes) -> PlanRecord | None:
        """None if a later version wrote it, or if it is damaged: a plan never stops a command."""
        try:
            record = json.loads(text)
            if record["version"] != VERSION:
                return None
            figures = {name: Figure(**figure) for name, figure in record["figures"].items()}
            return cls(record["time"], record["place"], figures)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None


@dataclass(frozen=True)
class Measured:
    """What a run has measured so far. None: it has not, or it does not record it."""

    steps: int
    """Steps that count."""
    total_steps: int | None
    tokens_per_step: int
    step_seconds: float | None
    """Median since the newest start."""
    goodput: float | None
    lost_seconds: Mapping[str, float]
    """By cause."""
    spent_seconds: float
    """All of its time, without pauses between starts."""
    left_seconds: float | None
    """Time until its end, as `headway status` shows it."""
    interruptions: int
    memory_bytes: float | None = None
    """Peak of one device."""
    usd: float | None = None
    """Spent so far."""


@dataclass(frozen=True)
class OutcomeRow:
    key: str
    what: str
    planned: Figure | None
    measured: float | None
    unit: RowUnit
    why: str
    """Why they differ, or that they do not; empty where there is nothing to compare."""

    @property
    def ratio(self) -> float | None:
        """Measured over planned."""
        if self.planned is None or self.measured is None or not self.planned.value:
            return None
        return self.measured / self.planned.value


def outcome_rows(plan: PlanRecord | None, measured: Measured) -> list[OutcomeRow]:
    """One row for each figure that is planned or measured, the end of the run re-estimated. Uses
    these figures of the plan: step_seconds, tokens_per_second, goodput, interruptions_per_hour,
    memory_bytes, run_seconds, usd."""
    figures = plan.figures if plan is not None else {}
    speed = measured.step_seconds and measured.tokens_per_step / measured.step_seconds
    hours = measured.spent_seconds / 3600
    rate = figures.get("interruptions_per_hour")
    rows = [
        _row("step_seconds", "a step", figures, measured.step_seconds, "seconds"),
        _row("tokens_per_second", "tokens a second", figures, speed, "per_second"),
        _goodput_row(figures.get("goodput"), measured),
        OutcomeRow(
            "interruptions",
            "interruptions so far",
            rate and rate.times(hours, f"{rate.value:.3g} an hour: {rate.reason}"),
            measured.interruptions,
            "count",
            "",
        ),
        _row("memory_bytes", "memory of a device", figures, measured.memory_bytes, "bytes"),
        _row("run_seconds", "the whole run", figures, run_seconds(measured), "seconds"),
        _row("usd", "cost in all", figures, whole_usd(measured), "usd"),
    ]
    return [row for row in rows if row.planned is not None or row.measured is not None]


def run_seconds(measured: Measured) -> float | None:
    """All of the run's time, estimated anew: what is spent, and what is left. None before the first
    step, or if the number of steps is not known."""
    if measured.left_seconds is None:
        return None
    return measured.spent_seconds + measured.left_seconds


def whole_usd(measured: Measured) -> float | None:
    """Money in all, estimated anew: what is spent, and as much an hour until the end."""
    whole = run_seconds(measured)
    if measured.usd is None or whole is None or not measured.spent_seconds:
        return measured.usd
    return measured.usd * whole / measured.spent_seconds


def _row(
    key: str, what: str, figures: Mapping[str, Figure], measured: float | None, unit: RowUnit
) -> OutcomeRow:
    planned = figures.get(key)
    return OutcomeRow(key, what, planned, measured, unit, _why(planned, measured))


def _why(planned: Figure | None, measured: float | None) -> str:
    if planned is None:
        return "" if measured is None else "not planned"
    if measured is None:
        return "not measured yet"
    if planned.low <= measured <= planned.high:
        return "as planned"
    side = "above" if measured > planned.high else "below"
    return f"{side} what was planned ({planned.basis}): {planned.reason}"


def _goodput_row(planned: Figure | None, measured: Measured) -> OutcomeRow:
    why = _why(planned, measured.goodput)
    lost = {cause: one for cause, one in measured.lost_seconds.items() if one > 0}
    if planned is not None and measured.goodput is not None and lost:
        most = max(lost, key=lambda cause: lost[cause])
        if measured.goodput < planned.low:
            share = lost[most] / measured.spent_seconds if measured.spent_seconds else 0.0
            why = f"below what was planned: most was lost by {most}, {share:.1%} of the time"
    return OutcomeRow("goodput", "goodput", planned, measured.goodput, "share", why)
