"""A run that is killed again and again, beside the same run left alone."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from headway.spec.resolve import Resolved
from headway.state.checkpoints import find_checkpoint
from headway.state.ledger import Verdict, verify_ledger
from headway.state.run_directory import RunDirectory
from headway.train.read_rows import WantedRows, read_rows
from headway.train.safetensors_file import TORCH_DTYPES
from support.waiting import wait_for
from support.workers import Workers, train

LAST_START_SECONDS = 300.0
MOST_STEPS = 50
"""Of one start before it is killed: a run of 80 steps a kill never comes to its end too early."""
STARTUP_SHARE = 0.2
"""Of kills that come while workers are still starting."""
RUN_FILE = """\
version: 1
name: it
model: {type: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 64, n_positions: 32, vocab_size: 448}}
data: {train: unused, sequence_length: 16}
batch: {global: 7, micro: 2}
train_for: STEPS steps
optimizer: {lr: 1e-3}
precision: fp32
seed: 3
threads: 1
track: []
evaluation: {every: 50 steps, sequences: 11}
checkpoint: {every: 7 steps}
"""


def write_run(folder: Path, steps: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.yaml").write_text(RUN_FILE.replace("STEPS", str(steps)))
    return folder


@dataclass(frozen=True)
class Killed:
    directory: RunDirectory
    kills: int
    kills_while_saving: int
    ledger: Verdict


def kill_and_resume(resolved: Resolved, kills: int, seed: int) -> Killed:
    """Starts the run, kills all its workers at a random moment, and again, `kills` times; then lets
    it come to its end."""
    moments = random.Random(seed)
    while_saving = 0
    for _ in range(kills):
        known = RunDirectory(resolved.run_directory).here()
        before = known.metrics.read()[1]
        workers = Workers(resolved)
        if moments.random() < STARTUP_SHARE:
            time.sleep(moments.uniform(0.1, 1.0))
        else:
            _wait_for_steps(known, before, moments.randint(1, MOST_STEPS))
            time.sleep(moments.uniform(0.0, 0.03))
        workers.kill()
        events = known.events.read()[0]
        if events and events[-1]["event"] == "saving":
            while_saving += 1
        assert not any(e["event"] == "finished" for e in events), "it ended before all its kills"
    directory = train(resolved, LAST_START_SECONDS)
    verdict = verify_ledger(directory.ledger.read()[0])
    return Killed(directory, kills, while_saving, verdict)


def _wait_for_steps(directory: RunDirectory, position: int, count: int) -> None:
    """Until so many steps were recorded after a position of the metrics."""

    def recorded() -> bool:
        return sum("step" in record for record in directory.metrics.read(position)[0]) >= count

    wait_for(f"{count} steps", recorded, seconds=60)


def final_state(directory: RunDirectory) -> dict[str, torch.Tensor]:
    """Every tensor of the newest checkpoint: weights and optimizer."""
    found, manifest = find_checkpoint(directory)
    state = {
        name: torch.zeros(stored.shape, dtype=TORCH_DTYPES[stored.dtype])
        for name, stored in manifest.tensors.items()
    }
    wanted = [WantedRows(state[name], 0, stored) for name, stored in manifest.tensors.items()]
    read_rows(wanted, manifest.files, directory.store, found.folder)
    return state


def differing(one: RunDirectory, other: RunDirectory) -> list[str]:
    """Names of tensors that are not equal bit for bit."""
    mine, its = final_state(one), final_state(other)
    assert mine.keys() == its.keys()
    return [name for name in mine if not torch.equal(mine[name], its[name])]
