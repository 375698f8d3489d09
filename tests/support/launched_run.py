"""A small run that another launcher starts, as the tests follow it from its files."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from headway.state.ledger import verify_ledger
from headway.state.run_directory import RunDirectory
from headway.state.status import read_status
from support.workers import TEN_STEPS, resolved_run, train

STEPS = 300
RUN_FILE = (
    TEN_STEPS.replace("train_for: 10 steps", f"train_for: {STEPS} steps")
    .replace("every: 5 steps", "every: 20 steps")
    .replace("train: unused", "train: SET")
)


class LaunchedRun:
    """The run `it` of run.yaml in `folder`, and beside it the same run undisturbed."""

    def __init__(self, folder: Path, sets: dict[str, Path]) -> None:
        self.folder, alone = folder / "here", folder / "alone"
        for each in (self.folder, alone):
            each.mkdir()
            (each / "run.yaml").write_text(RUN_FILE.replace("SET", str(sets["train"])))
        self.undisturbed = train(resolved_run(alone, sets))
        self.location = self.folder / "runs/it"

    def go_on(self) -> None:
        """Makes it a run that ends only when it is stopped."""
        file = self.folder / "run.yaml"
        file.write_text(file.read_text().replace(f"{STEPS} steps", "1000000 steps"))

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory.open(self.location)

    def step(self) -> int:
        if not RunDirectory.exists(self.location):
            return 0
        return read_status(self.directory, time.time()).step

    def require_finished(self) -> None:
        """Every step once, and each loss that of the undisturbed run."""
        status = read_status(self.directory, time.time())
        assert (status.state, status.step) == ("finished", STEPS)
        verdict = verify_ledger(self.directory.ledger.read()[0])
        assert (verdict.breach, verdict.steps, verdict.samples) == (None, STEPS, 4 * STEPS)
        runs = (self.directory, self.undisturbed)
        losses, its = ([one["loss"] for one in run.steps()] for run in runs)
        assert losses == pytest.approx(its, abs=1e-5)
