"""prove.html: one page of tables, made from the report alone. No script, nothing fetched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from headway.prove.report import (
    PLANNED_FIGURES,
    CheckResult,
    PlannedResult,
    ProofReport,
    SpeedResult,
)

NUMBERS = {
    *("seconds", "workers", "tokens/s", "its tokens/s", "MFU", "its MFU"),
    *("measured", "planned", "at least", "at most"),
}
"""Columns aligned to the right."""
BASELINE_NAMES = {"bare": "a bare loop", "ddp": "DDP", "fsdp2": "FSDP2"}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff; max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; }
h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .8rem .35rem 0;
  border-bottom: 1px solid #d8dee4; }
th { font-weight: 600; }
td.number, th.number { text-align: right; white-space: nowrap; }
pre { margin: 0; overflow-x: auto; font-size: .8rem; }
.figure { white-space: pre-wrap; overflow-wrap: anywhere; }
.verdict { font-size: 1.15rem; font-weight: 600; }
.outcome { font-weight: 600; white-space: nowrap; }
.passed { color: #116329; } .failed { color: #a40e26; } .not-run { color: #59636e; }
"""


def page(report: ProofReport) -> str:
    words = "passed" if report.passed else "failed"
    title = f"Headway {report.headway} on {_devices(report)}: {words}"
    parts = [
        f"<h1>Headway {escape(report.headway)} on {escape(_devices(report))}</h1>",
        f'<p class="verdict {words}">{words.capitalize()}: {escape(report.verdict)}.</p>',
        f"<p>{escape(_summary(report))}</p>",
        "<h2>Checks</h2>",
        _table(("check", "outcome", "figure", "seconds"), map(_check_cells, report.checks)),
        f"<p>{escape(_tolerance(report))}</p>",
        *_speed(report),
        *_planned(report),
        *_rates(report),
        f"<h2>{'Machine' if report.nodes is None else 'Target'}</h2>",
        _table(("", ""), ((escape(k), _value(v)) for k, v in report.machine.items()), header=False),
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _devices(report: ProofReport) -> str:
    devices = f"{report.num_devices} x {report.device}"
    if report.nodes is None:
        return "the CPU" if report.is_rehearsal else devices
    return f"{report.nodes} nodes{' without GPUs' if report.is_rehearsal else f': {devices}'}"


def _summary(report: ProofReport) -> str:
    began = report.started[:16].replace("T", " ")
    text = f"headway prove, {began} UTC, {report.seconds / 60:.1f} minutes."
    if report.is_rehearsal:
        text += " A rehearsal: there was no GPU, so this proves nothing about GPUs."
    return text


def _tolerance(report: ProofReport) -> str:
    return (
        f"Equal losses: in fp32, the loss of every step differs from that of one {_one(report)} "
        f"by at most {report.tolerance:.0e}, relatively; its gradient norm by ten times as much."
    )


def _one(report: ProofReport) -> str:
    return "worker" if report.nodes is None else "node"


def _rates(report: ProofReport) -> list[str]:
    if not report.rates:
        return []
    note = (
        "Headway alone, on all nodes: the median of the second half of the steps. There is no "
        "other loop beside it, so these figures compare nothing."
    )
    rows = (
        (escape(one.preset), str(one.workers), f"{one.tokens_per_second:,.0f}", _percent(one.mfu))
        for one in report.rates
    )
    table = _table(("preset", "workers", "tokens/s", "MFU"), rows)
    return ["<h2>Speed</h2>", table, f"<p>{note}</p>"]


def _speed(report: ProofReport) -> list[str]:
    if not report.speed:
        return []
    names = ("preset", "beside", "workers", "tokens/s", "its tokens/s", "MFU", "its MFU", "ratio")
    note = (
        "Headway and the other loop took turns of two steps in the same processes. The ratio is "
        "the median of all rounds, with its quartiles. MFU only for devices with a known peak."
    )
    return ["<h2>Speed</h2>", _table(names, map(_speed_cells, report.speed)), f"<p>{note}</p>"]


def _speed_cells(found: SpeedResult) -> Sequence[str]:
    return (
        escape(found.preset),
        BASELINE_NAMES[found.against],
        str(found.workers),
        f"{found.tokens_per_second:,.0f}",
        f"{found.other_tokens_per_second:,.0f}",
        _percent(found.mfu),
        _percent(found.other_mfu),
        f"{found.ratio:.3f} ({found.quartiles[0]:.3f} to {found.quartiles[1]:.3f})",
    )


def _planned(report: ProofReport) -> list[str]:
    if not report.planned:
        return []
    first = report.planned[0]
    what = f"{first.preset} in {first.precision}, workers: {first.workers}."
    note = "Planned before the run was started. The memory of a CPU is not measured."
    names = ("figure", "measured", "planned", "at least", "at most")
    table = _table(names, map(_planned_cells, report.planned))
    return ["<h2>Beside the plan</h2>", f"<p>{escape(what)} {note}</p>", table]


def _planned_cells(found: PlannedResult) -> Sequence[str]:
    name, written = PLANNED_FIGURES[found.figure]
    values = (found.measured, found.planned, found.low, found.high)
    return (name, *("-" if value is None else written(value) for value in values))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _check_cells(check: CheckResult) -> Sequence[str]:
    mark = check.outcome.replace(" ", "-")
    return (
        escape(check.name),
        f'<span class="outcome {mark}">{check.outcome}</span>',
        f'<span class="figure">{escape(check.figure)}</span>',
        f"{check.seconds:.0f}" if check.outcome != "not run" else "",
    )


def _value(text: str) -> str:
    return f"<pre>{escape(text)}</pre>" if "\n" in text else escape(text)


def _table(names: Sequence[str], rows: Iterable[Sequence[str]], header: bool = True) -> str:
    """Cells of `rows` are HTML."""
    style = ['class="number"' if name in NUMBERS else "" for name in names]
    lines = [
        "<tr>" + "".join(f"<td {s}>{c}</td>" for s, c in zip(style, row, strict=True)) + "</tr>"
        for row in rows
    ]
    head = "".join(f"<th {s}>{n}</th>" for s, n in zip(style, names, strict=True))
    top = [f"<tr>{head}</tr>"] if header else []
    return "\n".join(["<table>", *top, *lines, "</table>"])
