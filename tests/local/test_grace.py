"""SIGTERM with ten seconds of grace, in the middle of whatever the run is doing."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from headway.state.checkpoints import steps_saved
from headway.state.ledger import verify_ledger
from support.stolen_time import Stopwatch
from support.waiting import wait_for
from support.workers import Workers, resolved_run

pytestmark = pytest.mark.local

GRACE_SECONDS = 10.0
# A wide embedding makes a save of some 200 MB; evaluating every sequence of the set takes long.
RUN_FILE = """\
version: 1
name: it
model:
  type: gpt2
  config: {n_layer: 1, n_head: 2, n_embd: 256, n_positions: 32, vocab_size: 65536}
data: {train: unused, sequence_length: 16}
batch: {global: 2, micro: 1}
train_for: 1000 steps
precision: fp32
threads: 1
track: []
evaluation: {every: 5 steps, sequences: all}
checkpoint: {every: 3 steps}
"""


@pytest.mark.parametrize(
    "nodes", [pytest.param(1, marks=pytest.mark.long("the gate has two workers")), 2]
)
@pytest.mark.parametrize("moment", ["step", "save", "evaluation"])
def test_saved_and_left_within_the_grace(
    moment: str, nodes: int, tmp_path: Path, stream: dict[str, Path]
) -> None:
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    workers = Workers(resolved_run(tmp_path, stream, nodes))
    directory = workers.directory
    try:
        if moment == "save":
            wait_for("a save to begin", lambda: _seen(directory, "saving"))
        else:
            step = 5 if moment == "evaluation" else 2
            wait_for(f"step {step}", lambda: (directory.metrics.last() or {}).get("step") == step)
            time.sleep(0.1)
        if moment == "evaluation":
            assert not _seen(directory, "evaluated"), "the signal must come in the middle of it"
        watch = Stopwatch()
        workers.signal(signal.SIGTERM)
        workers.wait(expect=6)
        assert watch.seconds < GRACE_SECONDS
    finally:
        workers.kill()
    done = len(directory.steps())
    assert steps_saved(directory)[-1] == done
    verdict = verify_ledger(directory.ledger.read()[0])
    assert (verdict.breach, verdict.steps) == (None, done)
    if moment == "evaluation":
        assert not _seen(directory, "evaluated"), "it was left, not finished"


def _seen(directory, event: str) -> bool:
    return any(record["event"] == event for record in directory.events.read()[0])
