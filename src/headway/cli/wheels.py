"""headway wheels: what brings Headway into a worker's pod whose image has none."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.output import say


def wheels(
    into: Annotated[Path, typer.Argument(metavar="FOLDER", help="An empty folder of the pod.")],
) -> None:
    """Copy the wheels of this image into a folder (used in the workers' pods of headway run
    --on)."""
    from headway.errors import Exit
    from headway.kube.versions import require_launchers_version
    from headway.kube.wheels import copy_wheels, wheels_folder

    require_launchers_version()
    try:
        say(f"copied {copy_wheels(wheels_folder(), into)} wheels")
    except OSError as error:
        # The disk of this machine: another pod may do better.
        say(f"error: {error}")
        raise typer.Exit(int(Exit.PEER_LOST)) from None
