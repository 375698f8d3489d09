"""A plan on a screen of 80 columns: the answers first, then what they are made of."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.cli.plan.figure_text import PlanEntry, ranged
from headway.cli.plan.model_shape import UnknownShape

if TYPE_CHECKING:
    from headway.cli.plan.estimate import Answer, FleetPlan, PlanSection, RunPlan
    from headway.cli.terminal import Line, Piece, Style

COLUMNS = 80
LABEL = 18
VALUE = 24
COLOURS: dict[str, Style] = {"yes": "green", "maybe": "yellow", "no": "red", "unknown": "yellow"}
FITS = {"yes": "fits", "maybe": "may not fit", "no": "does not fit", "unknown": "not known"}


def screen(plan: RunPlan) -> Iterator[Line]:
    first, *others = plan.fleets
    yield [(f"{plan.asked.title} on {place_words(plan, first)}", "bold")]
    yield []
    yield from _answer(FITS[first.fits.verdict], first.fits)
    for other in others:
        if other.fits.verdict != first.fits.verdict:
            yield from _answer(FITS[other.fits.verdict], other.fits, f"{other.fleet}: ")
    if isinstance(plan.workload, UnknownShape):
        yield from _wrapped("to plan it", plan.workload.hint)
    for note in (*plan.notes, *first.notes):
        yield from _wrapped("note", note, "yellow")
    for section in (plan.model, *first.sections):
        yield from _section(section)


def place_words(plan: RunPlan, first: FleetPlan) -> str:
    words, fleet = str(first.fleet), first.fleet
    if fleet.num_devices > 1:
        words += f" ({fleet.num_devices} {'devices' if fleet.device else 'workers'})"
    place = plan.asked.place
    return words if place.target is None and "," not in place.words else f"{words}, {place.words}"


def _answer(word: str, answer: Answer, where: str = "") -> Iterator[Line]:
    yield from _wrapped(word, f"{where}{answer.words}", COLOURS[answer.verdict])


def _section(section: PlanSection) -> Iterator[Line]:
    if section.entries:
        yield []
        yield [(section.title, "bold")]
        for entry in section.entries:
            yield _entry_line(entry)


def _entry_line(entry: PlanEntry) -> Line:
    value = ranged(entry.figure, entry.unit)
    pieces: list[Piece] = [(f"  {entry.label:<{LABEL - 2}}", ""), (value, "")]
    if entry.remark and LABEL + max(len(value), VALUE) + 2 + len(entry.remark) <= COLUMNS:
        pieces += [(" " * max(2, VALUE - len(value) + 2), ""), (entry.remark, "dim")]
    return pieces


def _wrapped(label: str, text: str, style: Style = "") -> Iterator[Line]:
    lines = textwrap.wrap(text, COLUMNS - LABEL, break_on_hyphens=False, break_long_words=False)
    for at, line in enumerate(lines or [""]):
        yield [(f"{f'  {label}' if not at else '':<{LABEL}}", style), (line, "")]
