"""headway report: a page of pictures of one run or several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import OnOption, RunsArgument
from headway.cli.output import say
from headway.cli.output_path import writes_file

if TYPE_CHECKING:
    from headway.cli.members import Event
    from headway.report.run_data import RunData
    from headway.state.run_directory import RunDirectory


def report(
    runs: RunsArgument = None,
    into: Annotated[Path, typer.Option("--into", help="The page to write.")] = Path("report.html"),
    on: OnOption = None,
) -> None:
    """Write a page of one run or several: losses, speed, members, every interruption.

    It is one file that opens offline: send it to somebody. Several runs are drawn over each other,
    and the settings in which they differ are listed."""
    from headway.clock import SystemClock
    from headway.report.activation_charts import activation_charts
    from headway.report.page import page
    from headway.report.run_data import ledger_verdict, run_data

    with writes_file(into, "--into"):
        directories = runs_of(runs, on)
        now = SystemClock().now()
        ledgers = [ledger_verdict(directory) for directory in directories]
        found = [_readable(run_data(one, now), one.history()) for one in directories]
        # Blocks of several runs, drawn over each other, would be lines that nobody can tell apart.
        charts = activation_charts(directories[0]) if len(directories) == 1 else []
        into.write_text(page(found, ledgers, charts), "utf-8")
        say(f"wrote {into} ({into.stat().st_size / 2**20:.1f} MB)")


def _readable(run: RunData, events: Sequence[Event]) -> RunData:
    """Workers in the causes of interruptions named as people name them."""
    from dataclasses import replace

    from headway.cli.members import newest_launch, readable_names

    ranks = newest_launch(events).ranks
    causes = [readable_names(one.cause, ranks) for one in run.pauses]
    named = [replace(one, cause=c) for one, c in zip(run.pauses, causes, strict=True)]
    return replace(run, pauses=named)


def runs_of(names: Sequence[str] | None, on: str | None) -> list[RunDirectory]:
    """Run directories for looking at: each log is read once."""
    from headway.report.run_data import open_once

    return [open_once(directory) for directory in directories_of(names, on)]


def directories_of(names: Sequence[str] | None, on: str | None) -> list[RunDirectory]:
    """Of the named runs; without a name, of the one of ./run.yaml."""
    from headway.cli.target_run import directory_of

    wanted: Sequence[str | None] = names or [None]
    return [directory_of(name, on, Path.cwd()) for name in wanted]
