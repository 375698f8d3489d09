"""headway target storage and headway target prune: what runs have uploaded to a target."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import JsonOption, TargetArgument
from headway.cli.output import print_json, print_table, say, short_bytes

if TYPE_CHECKING:
    from headway.launch.storage_use import StoredFolder

COLUMNS = ("KIND", "DIGEST", "FILES", "SIZE", "RUNS")
INCOMPLETE = "(incomplete)"


def storage(
    on: TargetArgument,
    json_: JsonOption = False,
) -> None:
    """List what was uploaded to the storage of a target (sets, code, packages and models), and the
    runs that name it."""
    from headway.cli.target_run import TargetRun, end_claim_pods
    from headway.launch.storage_use import launched_specs, stored_folders
    from headway.spec.load import load_target
    from headway.state.store import Store

    folder = Path.cwd()
    target = TargetRun("", on, load_target(on, folder).target, folder)
    launched = launched_specs(target.kube, on)
    try:
        found = stored_folders(Store(target.storage), launched)
    finally:
        end_claim_pods()
    if json_:
        print_json([asdict(each) for each in found])
        return
    if not found:
        say(f"nothing is uploaded to the storage of {on}")
        return
    print_table(COLUMNS, [_row(each) for each in found])


def prune(
    on: TargetArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove sets, code, packages and models that no run names and no launch has used for 7 days.
    Runs and their checkpoints are never touched."""
    from headway.cli.target_run import TargetRun, end_claim_pods
    from headway.cli.uploads import together
    from headway.clock import SystemClock
    from headway.launch.storage_prune import removed_folders, unused_folders
    from headway.launch.storage_use import launched_specs
    from headway.spec.load import load_target
    from headway.state.store import Store

    folder = Path.cwd()
    target = TargetRun("", on, load_target(on, folder).target, folder)
    clock = SystemClock()

    def launched() -> dict[str, str]:
        return launched_specs(target.kube, on)

    try:
        storage = Store(target.storage)
        old, young = unused_folders(storage, launched, clock)
        if young:
            say(f"unused for less than 7 days, and kept: {together(young)}")
        if not old:
            say(f"nothing to remove from the storage of {on}")
            return
        print_table(COLUMNS[:4], [_row(each)[:4] for each in old])
        if not yes:
            typer.confirm(f"remove {together(old)} from the storage of {on}?", abort=True, err=True)
        for each, is_removed in removed_folders(storage, old, launched, clock):
            say(f"removed {each.name}" if is_removed else f"kept {each.name}: it is used again")
    finally:
        end_claim_pods()


def _row(folder: StoredFolder) -> tuple[str, ...]:
    return (
        folder.kind,
        folder.digest,
        str(folder.num_files),
        short_bytes(folder.num_bytes),
        ", ".join(folder.runs) or ("-" if folder.is_whole else INCOMPLETE),
    )
