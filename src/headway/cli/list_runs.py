"""headway list: the runs of this folder."""

from __future__ import annotations

from pathlib import Path

from headway.cli.options import JsonOption
from headway.cli.output import print_json, print_table, say


def list_runs(json_: JsonOption = False) -> None:
    """List the runs of this folder."""
    from headway.clock import SystemClock
    from headway.state import find
    from headway.state.status import read_status

    folder = find.runs_folder(Path.cwd())
    now = SystemClock().now()
    found = [read_status(directory, now) for directory in find.list_runs(folder)]
    if json_:
        print_json([status.as_json() for status in found])
        return
    if not found:
        say(f"no runs in {folder}")
        return
    rows = [
        (
            status.name,
            status.state,
            f"{status.step}/{status.total_steps or '?'}",
            f"{status.loss:.4f}" if status.loss is not None else "-",
            str(status.checkpoint_step or "-"),
        )
        for status in found
    ]
    print_table(("NAME", "STATE", "STEP", "LOSS", "CHECKPOINT"), rows)
