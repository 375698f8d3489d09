"""A run by what people call it: its name, its folder, or nothing for the one of ./run.yaml."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

from headway.errors import BadInput, NotFound
from headway.spec.load import RUN_FILE, load_run
from headway.spec.resolve import run_directory, runs_location
from headway.state.run_directory import RunDirectory
from headway.state.store import Store


def runs_folder(folder: Path) -> str:
    """Where the runs of this folder are: as its run file says, else `runs`."""
    if (folder / RUN_FILE).is_file():
        return runs_location(load_run(folder / RUN_FILE))
    return str(folder / "runs")


def find_run(reference: str | None, folder: Path) -> RunDirectory:
    """`folder` is where names and relative paths are looked up."""
    if reference is None:
        return RunDirectory.open(run_directory(load_run(folder / RUN_FILE)))
    if "://" in reference:
        return RunDirectory.open(reference)
    path = (folder / reference).resolve()
    if RunDirectory.exists(path):
        return RunDirectory.open(path)
    if path.is_file() or (path / RUN_FILE).is_file():
        return RunDirectory.open(run_directory(load_run(path)))
    named = f"{runs_folder(folder)}/{reference}"
    if RunDirectory.exists(named):
        return RunDirectory.open(named)
    raise NotFound(
        f"no run {reference!r}: neither {path} nor {named} is one",
        "headway list",
    )


def split_step(reference: str) -> tuple[str, int | None]:
    """`RUN@300` -> (RUN, 300); without a step the newest is meant."""
    match = re.match(r"^(.+)@(\d+)$", reference)
    return (match[1], int(match[2])) if match else (reference, None)


def list_runs(location: str, warn: Callable[[str], None] = warnings.warn) -> list[RunDirectory]:
    """`warn` is told of each that cannot be read."""
    found = []
    for name in Store(location).names_one_below("run.json"):
        try:
            found.append(RunDirectory.open(f"{location}/{name.removesuffix('/run.json')}"))
        except BadInput as error:
            warn(error.message)
    return found
