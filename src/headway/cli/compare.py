"""headway compare: a table of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.completion import local_runs
from headway.cli.options import JsonOption, OnOption
from headway.cli.output import print_json, print_table, short_count, short_time
from headway.cli.report import runs_of

if TYPE_CHECKING:
    from headway.report.run_data import RunData

Facts = dict[str, Any]
WIDEST_CELL = 40
"""A longer value is cut in the table; --json has all of it."""


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Names or folders of runs.", autocompletion=local_runs),
    ],
    on: OnOption = None,
    json_: JsonOption = False,
) -> None:
    """Compare runs in a table: losses, speed, interruptions, and the settings that differ."""
    from headway.clock import SystemClock
    from headway.report.run_data import differing_settings, run_data

    now = SystemClock().now()
    found = [run_data(directory, now) for directory in runs_of(runs, on)]
    facts, settings = [_facts(run) for run in found], differing_settings(found)
    if json_:
        print_json({"runs": facts, "settings": settings})
        return
    rows = [tuple(map(_cut, row)) for row in _rows(facts, settings)]
    print_table(("", *(run.name for run in found)), rows)


def _facts(run: RunData) -> Facts:
    """What is compared."""
    from headway.report.run_data import lowest

    status, goodput = run.status, run.status.goodput
    return {
        "name": run.name,
        "state": status.state,
        "step": status.step,
        "total_steps": status.total_steps,
        "loss": {"last": status.loss, "best": lowest(run.series.get("loss", ([], [])))},
        "validation": {
            name: {"last": status.evaluations.get(name), "best": lowest(series)}
            for name, series in run.evaluations.items()
        },
        "tokens_per_second": run.tokens_per_second,
        "goodput": None if goodput is None else goodput.ratio,
        # From each launch to its last record: without the time between two launches.
        "seconds": None if goodput is None else goodput.total_seconds,
        "interruptions": len(run.interruptions),
        "interrupted_seconds": round(sum(one.seconds for one in run.interruptions), 3),
    }


def _rows(
    runs: Sequence[Facts], settings: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, ...]]:
    """Each with its heading first."""
    yield "state", *(run["state"] for run in runs)
    yield "step", *(_step(run) for run in runs)
    yield "loss", *(_number(run["loss"]["last"]) for run in runs)
    yield "loss, best", *(_number(run["loss"]["best"]) for run in runs)
    for name in dict.fromkeys(name for run in runs for name in run["validation"]):
        sets = [run["validation"].get(name, {}) for run in runs]
        yield name, *(_number(one.get("last")) for one in sets)
        yield f"{name}, best", *(_number(one.get("best")) for one in sets)
    speeds = [run["tokens_per_second"] for run in runs]
    yield "tokens/s", *("-" if speed is None else short_count(speed) for speed in speeds)
    shares = [run["goodput"] for run in runs]
    yield "goodput", *("-" if share is None else f"{share:.1%}" for share in shares)
    times = [run["seconds"] for run in runs]
    yield "time", *("-" if seconds is None else short_time(seconds) for seconds in times)
    yield "interrupted", *(_interruptions(run) for run in runs)
    for key, values in settings.items():
        yield key, *(value or "-" for value in values)


def _step(run: Facts) -> str:
    return str(run["step"]) + ("" if run["total_steps"] is None else f" of {run['total_steps']}")


def _interruptions(run: Facts) -> str:
    count = run["interruptions"]
    if not count:
        return "never"
    return f"{count} time{'s' if count > 1 else ''}, {short_time(run['interrupted_seconds'])}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _cut(cell: str) -> str:
    return cell if len(cell) <= WIDEST_CELL else f"{cell[: WIDEST_CELL - 1]}…"
