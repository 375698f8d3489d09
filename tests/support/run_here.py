"""A run of one worker in this process, real but for its size, without a launcher."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headway.clock import Clock, SystemClock
from headway.errors import Exit
from headway.state.run_directory import Journal, RunDirectory
from headway.train.loop import train
from headway.train.stop_request import StopRequest
from headway.train.worker_run import WorkerRun, open_run
from headway.train.world import OneWorld, RankPlacement, World
from support.chains import LAUNCH, launched
from support.token_sets import write_set
from support.workers import resolved_run

CPU = torch.device("cpu")
RUN_FILE = """\
version: 1
name: it
model: {call: "tiny_own_model:build"}
data: {train: unused, sequence_length: 8}
batch: {global: 2, micro: 2}
train_for: 4 steps
precision: fp32
threads: 1
track: []
evaluation: {every: 1000 steps, sequences: 4}
code: {path: .}
"""
MODEL = """\
from torch import nn


def build():
    return nn.Sequential(nn.Embedding(100, 4), nn.Linear(4, 100))
"""


@dataclass
class RunHere:
    folder: Path
    overrides: tuple[str, ...] = ()
    has_validation: bool = True

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "run.yaml").write_text(RUN_FILE)
        (self.folder / "tiny_own_model.py").write_text(MODEL)
        sets = {"train": self.folder / "set"}
        if self.has_validation:
            sets["held-out"] = self.folder / "held-out"
        for path in sets.values():
            write_set(path, [([number % 90 for number in range(801)], None)])
        resolved = resolved_run(self.folder, sets, overrides=list(self.overrides))
        self.directory = RunDirectory.create(resolved.run_directory, SystemClock())
        self.directory.write_spec(resolved)

    def open(self, clock: Clock | None = None, stop: StopRequest | None = None) -> WorkerRun:
        """The worker of the next start."""
        self.generation = launched(self.directory)
        Journal(self.directory.launcher, SystemClock()).note(
            "launched", generation=self.generation, workers=1
        )
        return open_run(
            self.directory.read_spec(),
            RankPlacement(CPU),
            worker_number=0,
            launch=LAUNCH,
            stop=stop or StopRequest(),
            clock=clock or SystemClock(),
        )

    def train(self, run: WorkerRun) -> Exit:
        return train(run, OneWorld(World(0, 1, self.generation, RankPlacement(CPU))))

    def events(self, *names: str) -> list[dict[str, Any]]:
        found = self.directory.here().events.read()[0]
        return [event for event in found if not names or event["event"] in names]
