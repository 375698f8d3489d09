"""A run by what people call it: its name, its folder, or nothing for the one of ./run.yaml."""

from __future__ import annotations

import re
from pathlib import Path

from headway.errors import BadInput, NotFound
from headway.spec.load import RUN_FILE, load_run
from headway.spec.resolve import run_directory
from headway.state.rundir import RunDirectory


def runs_folder(folder: Path) -> Path:
    """Where the runs of this folder are: as its run file says, else `runs`."""
    if (folder / RUN_FILE).is_file():
        return run_directory(load_run(folder / RUN_FILE)).parent
    return folder / "runs"


def find_run(reference: str | None, folder: Path) -> RunDirectory:
    """`folder` is where names and relative paths are looked up."""
    if reference is None:
        return RunDirectory.open(run_directory(load_run(folder / RUN_FILE)))
    if "://" in reference:
        raise BadInput(f"{reference}: runs by URL are not there yet")
    path = (folder / reference).resolve()
    if (path / "run.json").is_file():
        return RunDirectory.open(path)
    if path.is_file() or (path / RUN_FILE).is_file():
        return RunDirectory.open(run_directory(load_run(path)))
    named = runs_folder(folder) / reference
    if (named / "run.json").is_file():
        return RunDirectory.open(named)
    raise NotFound(
        f"no run {reference!r}: neither {path} nor {named} is one",
        "headway list shows what there is",
    )


def split_step(reference: str) -> tuple[str, int | None]:
    """`RUN@300` -> (RUN, 300); without a step the newest is meant."""
    match = re.match(r"^(.+)@(\d+)$", reference)
    return (match[1], int(match[2])) if match else (reference, None)


def list_runs(folder: Path) -> list[RunDirectory]:
    return [RunDirectory.open(record.parent) for record in sorted(folder.glob("*/run.json"))]
