"""Commands that need to know what a run trains, and so do not apply to a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.errors import BadInput
from headway.state.run_directory import OUTPUT

if TYPE_CHECKING:
    from headway.state.run_directory import RunDirectory


def refuse_script(directory: RunDirectory, command: str, why: str, hint: str) -> None:
    """Raises if the run is a script. `OUTPUT` in the hint is the location of its output."""
    if directory.has_spec() and directory.read_spec().is_script:
        raise BadInput(
            f"{command} does not apply to {directory.name}, which runs a script: {why}",
            hint.replace("OUTPUT", directory.store.location(OUTPUT)),
        )


def refuse_generate(directory: RunDirectory) -> None:
    """Also from Python."""
    refuse_script(
        directory,
        "generate",
        "Headway does not know its model",
        "what the script has saved is in OUTPUT",
    )
