"""headway report: a page of pictures of one run or several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import OnOption
from headway.cli.output import say


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...", help="Names or folders of runs. Default: that of ./run.yaml."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path(
        "report.html"
    ),
    on: OnOption = None,
) -> None:
    """Write a page of one run or several: losses, speed, members, every interruption.

    It is one file that opens offline: send it to somebody. Several runs are drawn over each other,
    and the settings in which they differ are listed."""
    from headway.cli.target_run import target_run
    from headway.clock import SystemClock
    from headway.report.page import page
    from headway.report.run_data import run_data
    from headway.state.find_run import find_run

    now, found = SystemClock().now(), []
    wanted: Sequence[str | None] = runs or [None]
    for name in wanted:
        there = target_run(name, on, Path.cwd())
        directory = there.directory() if there is not None else find_run(name, Path.cwd())
        found.append(run_data(directory, now))
    output.write_text(page(found), "utf-8")
    say(f"wrote {output} ({output.stat().st_size / 2**20:.1f} MB)")
