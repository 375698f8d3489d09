"""headway delete: remove a run for good."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import OnOption
from headway.cli.output import say


def delete(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name, folder or URL.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    on: OnOption = None,
) -> None:
    """Remove a run with its checkpoints, logs and ledger. There is no way back."""
    from headway.cli.target_run import target_run
    from headway.clock import SystemClock
    from headway.errors import StillRunning
    from headway.state.checkpoints import steps_saved
    from headway.state.find import find_run
    from headway.state.status import read_status

    if (there := target_run(run, on, Path.cwd())) is not None:
        from headway.cli.launching import delete_on

        delete_on(there, yes)
        return
    directory = find_run(run, Path.cwd())
    if read_status(directory, SystemClock().now()).state in ("starting", "running"):
        raise StillRunning(f"run {directory.name} goes on", f"headway stop {directory.name}")
    saved = steps_saved(directory)
    what = f"{directory.location} with checkpoints of steps {', '.join(map(str, saved)) or 'none'}"
    if not yes:
        typer.confirm(f"delete {what}?", abort=True, err=True)
    directory.store.remove("")
    shutil.rmtree(directory.local, ignore_errors=True)
    say(f"deleted {what}")
