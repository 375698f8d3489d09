"""report.html: one page with everything in it, from the data of one run or several."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Any

import yaml

from headway.memory_limits import byte_size
from headway.plan.outcome import OutcomeRow, RowUnit
from headway.report.run_data import METRICS, RunData, differing_settings
from headway.spec.price_config import dollars
from headway.state.interruptions import Pause
from headway.state.ledger import Verdict

SHORT_SECONDS = 7200
KINDS = {
    "train": "training",
    "start": "starting",
    "restart": "restarting after a loss",
    "change": "changing members",
    "down": "not running",
}
CAPACITIES = {
    "on_demand": "on demand",
    "spot": "spot",
    "unknown": "not known, counted as on demand",
}
NUMBERS = {
    *("step", "seconds", "last step", "tokens", "loss", "held-out", "goodput", "hours", "spent"),
    *("planned", "measured", "ratio", "dollars an hour", "pods", "hours of all pods", "dollars"),
}
"""Columns aligned to the right."""
WIDE = {"cause", "why", "ledger", "prompt", "continuation"}
"""Columns that are broken into lines."""


def page(
    runs: Sequence[RunData],
    ledgers: Sequence[Verdict | None],
    more_charts: Sequence[dict[str, Any]] = (),
) -> str:
    """`ledgers`: what was found in the ledger of each run; None if it has none."""
    title = ", ".join(run.name for run in runs)
    charts = [*_metric_charts(runs), _member_chart(runs), *more_charts]
    charts = [chart for chart in charts if chart["series"]]
    parts = [
        f"<h1>{escape(title)}</h1>",
        _summary(runs, ledgers),
        "<h2>Time</h2>",
        _key(),
        *(_timeline(run, len(runs) > 1) for run in runs),
        "<h2>Training</h2>",
        '<div class="charts">',
        *(_chart_place(chart) for chart in charts),
        "</div>",
        *_differences(runs),
        *(part for run in runs for part in _details(run, len(runs) > 1)),
    ]
    data = json.dumps({"charts": charts}, separators=(",", ":")).replace("</", "<\\/")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n"
        f"<style>{_asset('uPlot.min.css')}{_asset('report.css')}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + f'\n<script type="application/json" id="data">{data}</script>\n'
        f"<!-- uPlot\n{_asset('uPlot-LICENSE')}-->\n"
        f"<script>{_asset('uPlot.iife.min.js')}</script>\n"
        f"<script>{_asset('report.js')}</script>\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return (resources.files("headway.report") / "assets" / name).read_text("utf-8")


def _metric_charts(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    charts = []
    for key, title in METRICS.items():
        series = [
            _line(_label(run, runs, title), *run.series[key]) for run in runs if key in run.series
        ]
        if key == "loss":
            series += [
                _line(_label(run, runs, name), *found, dashed=True)
                for run in runs
                for name, found in run.evaluations.items()
            ]
        charts.append(
            {"id": key, "title": title, "x": "step", "series": series, "percent": key == "mfu"}
        )
    return charts


def _member_chart(runs: Sequence[RunData]) -> dict[str, Any]:
    longest = max(run.end - run.start for run in runs)
    unit, seconds = ("hours", 3600) if longest > SHORT_SECONDS else ("minutes", 60)
    series = [
        _line(
            _label(run, runs, "workers"),
            [time / seconds for time in run.members[0]],
            run.members[1],
        )
        for run in runs
        if run.members[0]
    ]
    return {"id": "members", "title": "Workers", "x": unit, "series": series, "stepped": True}


def _label(run: RunData, runs: Sequence[RunData], what: str) -> str:
    return (
        what if len(runs) == 1 else run.name if what in METRICS.values() else f"{run.name}: {what}"
    )


def _line(
    label: str, x: list[float], y: list[float | None], dashed: bool = False
) -> dict[str, Any]:
    return {"label": label, "x": x, "y": y, "dashed": dashed}


def _chart_place(chart: dict[str, Any]) -> str:
    return (
        f'<div class="chart"><h3>{escape(chart["title"])}</h3><div id="{chart["id"]}"></div></div>'
    )


def _summary(runs: Sequence[RunData], ledgers: Sequence[Verdict | None]) -> str:
    names = ["run", "state", "last step", "loss", "held-out", "hours", "goodput", "ledger"]
    rows = [[*_summary_cells(run, ledger)] for run, ledger in zip(runs, ledgers, strict=True)]
    if any(run.status.spending for run in runs):
        names.insert(-1, "spent")
        for row, run in zip(rows, runs, strict=True):
            row.insert(-1, _spent(run))
    return _table(names, rows)


def _spent(run: RunData) -> str:
    spending = run.status.spending
    if spending is None:
        return ""
    budget = f" of {dollars(spending.budget_usd)}" if spending.budget_usd is not None else ""
    return f"{dollars(spending.usd)}{budget}"


def _summary_cells(run: RunData, ledger: Verdict | None) -> Sequence[str]:
    status = run.status
    total = f" of {status.total_steps:,}" if status.total_steps is not None else ""
    losses = [loss for loss in status.evaluations.values() if loss is not None]
    verdict = (
        "none: a script reads its own data"
        if ledger is None
        else f'<span class="good">exact</span>: {ledger.steps:,} steps, {ledger.samples:,} samples'
        if ledger.breach is None
        else f'<span class="bad">not exact</span>: {escape(ledger.breach)}'
    )
    return (
        escape(run.name),
        escape(status.state),
        f"{status.step:,}{total}",
        "" if status.loss is None else f"{status.loss:.4f}",
        f"{sum(losses) / len(losses):.4f}" if losses else "",
        f"{(run.end - run.start) / 3600:.2f}",
        f"{status.goodput.ratio:.1%}" if status.goodput else "",
        verdict,
    )


def _key() -> str:
    return (
        '<p class="key dim">'
        + "".join(f'<b><span class="{kind}"></span>{words}</b> ' for kind, words in KINDS.items())
        + "</p>"
    )


def _timeline(run: RunData, is_one_of_several: bool) -> str:
    whole = max(run.end - run.start, 1e-9)
    bars = "".join(
        f'<div class="{one.kind}" style="left:{100 * (one.start - run.start) / whole:.3f}%;'
        f'width:{100 * one.seconds / whole:.3f}%" title="{escape(_words(one))}"></div>'
        for one in run.pauses
    )
    name = f"<div>{escape(run.name)}</div>" if is_one_of_several else ""
    return f'{name}<div class="timeline">{bars}</div>'


def _words(one: Pause) -> str:
    return f"{KINDS[one.kind]}, {_seconds(one.seconds)} after step {one.step}: {one.cause}"


def _seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 5400:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def _differences(runs: Sequence[RunData]) -> list[str]:
    if len(runs) < 2:
        return []
    rows = (
        (f"<code>{escape(key)}</code>", *map(escape, values))
        for key, values in differing_settings(runs).items()
    )
    names = ("key", *(run.name for run in runs))
    return ["<h2>Settings that differ</h2>", _table(names, rows)]


def _details(run: RunData, is_one_of_several: bool) -> list[str]:
    name = f"{escape(run.name)}: " if is_one_of_several else ""
    parts = []
    if run.samples:
        texts = (
            (str(step), escape(prompt), escape(text))
            for prompt, each in run.samples.items()
            for step, text in each
        )
        table = _table(("step", "prompt", "continuation"), texts)
        parts += [f"<h2>{name}{'S' if not name else 's'}amples</h2>", table]
    if run.planned:
        outcome = map(_outcome_cells, run.planned)
        table = _table(("", "planned", "measured", "ratio", "why"), outcome)
        parts += [f"<h2>{name}{'P' if not name else 'p'}lanned and measured</h2>", table]
    if run.pauses:
        rows = (
            (str(one.step), KINDS[one.kind], escape(one.cause), f"{one.seconds:.1f}")
            for one in run.pauses
        )
        table = _table(("step", "what", "cause", "seconds"), rows)
        counted = f"auses, {len(run.interruptions)} of them interruptions"
        parts += [f"<h2>{name}{'P' if not name else 'p'}{counted}</h2>", table]
    if run.status.goodput is not None:
        lost = run.status.goodput.lost_seconds
        cells = ((escape(cause), f"{seconds:.1f}") for cause, seconds in lost.items() if seconds)
        parts += [
            f"<h2>{name}{'T' if not name else 't'}ime lost, by cause</h2>",
            _table(("cause", "seconds"), cells),
        ]
    if run.status.spending is not None:
        costs = (
            (
                escape(rate.node),
                CAPACITIES[rate.capacity],
                f"{rate.usd_per_hour:,.2f}",
                f"{rate.hours:,.2f}",
                f"{rate.usd:,.2f}",
            )
            for rate in run.status.spending.rates
        )
        columns = ("node", "machine", "dollars an hour", "hours of all nodes", "dollars")
        parts += [
            f"<h2>{name}{'M' if not name else 'm'}oney, by the target's prices</h2>",
            _table(columns, costs),
        ]
    if run.versions:
        versions = ", ".join(f"{key} {value}" for key, value in run.versions.items())
        parts.append(f'<p class="dim">{name}{escape(versions)}</p>')
    text = yaml.safe_dump(run.settings, sort_keys=False)
    return [
        *parts,
        f"<details><summary>{name}run file, resolved</summary><pre>{escape(text)}</pre></details>",
    ]


def _outcome_cells(row: OutcomeRow) -> Sequence[str]:
    planned = row.planned
    return (
        escape(row.what),
        "" if planned is None else _outcome_value(planned.value, row.unit),
        "" if row.measured is None else _outcome_value(row.measured, row.unit),
        "" if row.ratio is None else f"{row.ratio:.2f}",
        escape(row.why),
    )


def _outcome_value(value: float, unit: RowUnit) -> str:
    match unit:
        case "seconds":
            return _seconds(value) if value >= 10 else f"{value:.3g} s"
        case "share":
            return f"{value:.1%}"
        case "bytes":
            return byte_size(int(value))
        case "usd":
            return f"${value:,.2f}"
        case "count":
            return f"{value:,.3g}"
        case "per_second":
            return f"{value:,.0f}"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells of `rows` are HTML."""
    style = [
        ' class="number"' if name in NUMBERS else ' class="wide"' if name in WIDE else ""
        for name in names
    ]
    head = "".join(f"<th{s}>{escape(n)}</th>" for s, n in zip(style, names, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{s}>{cell}</td>" for s, cell in zip(style, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
