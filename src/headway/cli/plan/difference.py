"""headway plan --diff: what another run file changes in the plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headway.cli.plan.facts import answer_facts, figure_facts
from headway.cli.plan.figure_text import PlanEntry, shown
from headway.cli.plan.screen import BUDGET, COLOURS, FITS

if TYPE_CHECKING:
    from headway.cli.plan.run_plan import FleetPlan, PlanAnswer, RunPlan
    from headway.cli.terminal import Line, Style

LABEL, VALUE = 36, 17
WIDEST = 15
LEAST_CHANGE = 0.005
"""A figure that changes by a smaller share is left out."""
LESS_IS_BETTER = {"step_bytes", "step_seconds", "run_seconds", "usd", "usd_per_million_tokens"}


def difference_screen(one: RunPlan, other: RunPlan) -> Iterator[Line]:
    """Of the first fleet of each."""
    first, second = one.fleets[0], other.fleets[0]
    yield [(_row("", one.asked.title, other.asked.title, "change"), "bold")]
    yield [(_row("", str(first.fleet)[:WIDEST], str(second.fleet)[:WIDEST], ""), "dim")]
    yield []
    yield _answers("fits", FITS, first.fits, second.fits)
    if first.budget is not None and second.budget is not None:
        yield _answers("budget", BUDGET, first.budget, second.budget)
    settings = _settings(one, other)
    for setting, (before, after) in settings.items():
        yield [(_row(setting, before, after, ""), "")]
    if settings:
        yield []
    before_figures, after_figures = _figures(one, first), _figures(other, second)
    for key, entry in before_figures.items():
        after_entry = after_figures.get(key)
        if after_entry is None or entry.is_detail or not _is_changed(entry, after_entry):
            continue
        yield _figure_line(key, entry, after_entry)


def difference_facts(one: RunPlan, other: RunPlan) -> dict[str, Any]:
    first, second = one.fleets[0], other.fleets[0]
    before, after = _figures(one, first), _figures(other, second)
    return {
        "runs": [one.asked.title, other.asked.title],
        "fits": [answer_facts(first.fits), answer_facts(second.fits)],
        "settings": {key: list(values) for key, values in _settings(one, other).items()},
        "figures": {
            ".".join(key): [figure_facts(before[key].figure), figure_facts(after[key].figure)]
            for key in before
            if key in after and _is_changed(before[key], after[key])
        },
    }


def _answers(label: str, words: dict[str, str], first: PlanAnswer, second: PlanAnswer) -> Line:
    cells = (words[first.verdict], words[second.verdict])
    style: Style = COLOURS[second.verdict] if first.verdict != second.verdict else ""
    return [(_row(label, *cells, ""), style)]


def _figure_line(key: tuple[str, str], before: PlanEntry, after: PlanEntry) -> Line:
    old, new = before.figure.value, after.figure.value
    change = f"{new / old - 1:+.0%}" if old else "new"
    if old and new >= 10 * old:
        change = f"x {new / old:.0f}"
    style: Style = ""
    if key[1] in LESS_IS_BETTER:
        style = "green" if new < old else "red"
    label = before.label if key[0] in ("model", "time") else f"{key[0]}: {before.label}"
    row = _row(label, shown(old, before.unit), shown(new, after.unit), "")
    return [(row.ljust(2 + LABEL + 2 * VALUE), ""), (change, style)]


def _figures(plan: RunPlan, fleet: FleetPlan) -> dict[tuple[str, str], PlanEntry]:
    return {
        (section.key, entry.key): entry
        for section in (plan.model, *fleet.sections)
        for entry in section.entries
    }


def _is_changed(before: PlanEntry, after: PlanEntry) -> bool:
    old, new = before.figure.value, after.figure.value
    return abs(new - old) > LEAST_CHANGE * abs(old)


def _settings(one: RunPlan, other: RunPlan) -> dict[str, tuple[str, str]]:
    """Keys of the run files that differ."""
    before, after = (
        _flat(one.asked.run.model_dump(mode="json", by_alias=True)),
        _flat(other.asked.run.model_dump(mode="json", by_alias=True)),
    )
    return {
        key: (_cut(before.get(key, "-")), _cut(after.get(key, "-")))
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key) and key not in ("name", "extends")
    }


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if not isinstance(value, dict):
        return {} if value is None else {prefix: str(value)}
    found: dict[str, str] = {}
    for key, inner in value.items():
        found |= _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return found


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _row(*cells: str) -> str:
    label, before, after, change = cells
    label = label if len(label) < LABEL else f"…{label[-(LABEL - 2) :]}"
    return f"  {label:<{LABEL}}{before:<{VALUE}}{after:<{VALUE}}{change}"
