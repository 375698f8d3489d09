"""A plan on a screen of 80 columns: the answers first, then what they are made of."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.cli.model_shape import UnknownShape
from headway.cli.plan.figure_text import PlanEntry, PlanSection, money, ranged, shown

if TYPE_CHECKING:
    from headway.cli.plan.run_plan import FleetPlan, PlanAnswer, RunPlan
    from headway.cli.terminal import Line, Piece, Style

COLUMNS = 80
NOT_CALIBRATED = "not calibrated on Headway"
"""Beside a time on a GPU, unless a run has recorded it."""
MOST_CHANGES = 4
LABEL = 20
VALUE = 28
COLOURS: dict[str, Style] = {"yes": "green", "maybe": "yellow", "no": "red", "unknown": "yellow"}
BUDGET = {
    "yes": "within budget",
    "maybe": "budget is close",
    "no": "over budget",
    "unknown": "budget",
}
FITS = {"yes": "fits", "maybe": "may not fit", "no": "does not fit", "unknown": "not known"}


def screen(plan: RunPlan) -> Iterator[Line]:
    first = plan.fleets[0]
    yield [(f"{plan.asked.title} on {place_words(plan, first)}", "bold")]
    yield []
    if first.long_words:
        yield from _wrapped("over a year", first.long_words, "red")
    yield from _answer(FITS[first.fits.verdict], first.fits)
    if first.use is not None and first.use.verdict == "no":
        yield from _wrapped("idle devices", first.use.words, "red")
    if isinstance(plan.workload, UnknownShape):
        yield from _wrapped("to plan it", plan.workload.hint)
    yield from _time_and_money(plan)
    for words in first.change_words[:MOST_CHANGES]:
        label = "so that it fits" if first.fits.verdict == "no" else "to improve"
        yield from _wrapped(label, words, "cyan")
    for note in (*plan.notes, *first.notes):
        yield from _wrapped("note", note, "yellow")
    for section in (plan.model, *first.sections):
        yield from _section(section)


def _time_and_money(plan: RunPlan) -> Iterator[Line]:
    first, *others = plan.fleets
    is_possible = first.fits.verdict != "no"
    if first.seconds is not None:
        label = "takes" if is_possible else "would take"
        words = ranged(first.seconds, "seconds")
        is_measured = first.step is not None and first.step.basis == "measured"
        is_seen = first.fleet.device is None or is_measured
        yield from _wrapped(label, words if is_seen else f"{words}, {NOT_CALIBRATED}")
    if first.usd is not None:
        yield from _wrapped("costs" if is_possible else "would cost", ranged(first.usd, "usd"))
    if first.budget is not None:
        yield from _wrapped(BUDGET[first.budget.verdict], first.budget.words, _colour(first.budget))
    for other in others:
        found = [_fit_words(other)]
        found += [shown(other.seconds.value, "seconds")] if other.seconds else []
        found += [money(other.usd.value)] if other.usd else []
        yield from _wrapped("or", f"{other.fleet}: {', '.join(found)}", _colour(other.fits))


def _fit_words(one: FleetPlan) -> str:
    return FITS[one.fits.verdict] if one.fits.verdict != "unknown" else "memory not known"


def _colour(answer: PlanAnswer) -> Style:
    return COLOURS[answer.verdict] if answer.verdict != "yes" else ""


def place_words(plan: RunPlan, first: FleetPlan) -> str:
    words, fleet = str(first.fleet), first.fleet
    if fleet.num_devices > 1:
        words += f" ({fleet.num_devices} {'devices' if fleet.device else 'workers'})"
    place = plan.asked.place
    return words if place.target is None and "," not in place.words else f"{words}, {place.words}"


def _answer(word: str, answer: PlanAnswer) -> Iterator[Line]:
    yield from _wrapped(word, answer.words, COLOURS[answer.verdict])


def _section(section: PlanSection) -> Iterator[Line]:
    if section.entries:
        yield []
        yield [(section.title, "bold")]
        whole = next((one for one in section.entries if one.key == "step_bytes"), None)
        for entry in section.entries:
            if not entry.is_detail:
                is_part = whole is not None and entry.figure.value <= whole.figure.value
                yield _entry_line(entry, whole.figure.value if whole and is_part else None)
        for line in textwrap.wrap(section.words, COLUMNS - 2, break_on_hyphens=False):
            yield [(f"  {line}", "dim")]


def _entry_line(entry: PlanEntry, like: float | None) -> Line:
    value = ranged(entry.figure, entry.unit, like)
    pieces: list[Piece] = [(f"  {entry.label:<{LABEL - 2}}", ""), (value, "")]
    if entry.remark and LABEL + max(len(value), VALUE) + 2 + len(entry.remark) <= COLUMNS:
        pieces += [(" " * max(2, VALUE - len(value) + 2), ""), (entry.remark, "dim")]
    return pieces


def _wrapped(label: str, text: str, style: Style = "") -> Iterator[Line]:
    lines = textwrap.wrap(text, COLUMNS - LABEL, break_on_hyphens=False, break_long_words=False)
    for at, line in enumerate(lines or [""]):
        yield [(f"{f'  {label}' if not at else '':<{LABEL}}", style), (line, "")]
