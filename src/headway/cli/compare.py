"""headway compare: a table of runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.completion import local_runs
from headway.cli.options import JsonOption, OnOption
from headway.cli.output import print_json, print_table, short_count, short_time
from headway.cli.report import runs_of

if TYPE_CHECKING:
    from headway.report.comparison import ComparedRun, Comparison

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
    from headway.report.comparison import compare_runs
    from headway.report.run_data import run_data

    now = SystemClock().now()
    found = compare_runs([run_data(directory, now) for directory in runs_of(runs, on)])
    if json_:
        print_json(found.as_json())
        return
    names = [run.name for run in found.runs]
    print_table(("", *names), [tuple(map(_cut, row)) for row in _rows(found)])


def _rows(found: Comparison) -> Iterator[tuple[str, ...]]:
    """Each with its heading first."""
    runs = found.runs
    yield "state", *(run.state for run in runs)
    yield "step", *(_step(run) for run in runs)
    yield "loss", *(_number(run.loss.last) for run in runs)
    yield "loss, best", *(_number(run.loss.best) for run in runs)
    for name in dict.fromkeys(name for run in runs for name in run.validation):
        sets = [run.validation.get(name) for run in runs]
        yield name, *("-" if one is None else _number(one.last) for one in sets)
        yield f"{name}, best", *("-" if one is None else _number(one.best) for one in sets)
    speeds = [run.tokens_per_second for run in runs]
    yield "tokens/s", *("-" if speed is None else short_count(speed) for speed in speeds)
    yield "goodput", *("-" if run.goodput is None else f"{run.goodput:.1%}" for run in runs)
    yield "time", *("-" if run.seconds is None else short_time(run.seconds) for run in runs)
    yield "interrupted", *(_interruptions(run) for run in runs)
    for key, values in found.settings.items():
        yield key, *(value or "-" for value in values)


def _step(run: ComparedRun) -> str:
    return f"{run.step} of {run.total_steps}" if run.total_steps is not None else str(run.step)


def _interruptions(run: ComparedRun) -> str:
    count = run.interruptions
    if not count:
        return "never"
    return f"{count} time{'s' if count > 1 else ''}, {short_time(run.interrupted_seconds)}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _cut(cell: str) -> str:
    return cell if len(cell) <= WIDEST_CELL else f"{cell[: WIDEST_CELL - 1]}…"
