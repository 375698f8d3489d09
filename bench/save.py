"""`make bench-save`: what saving costs training, and how long a restart takes.

Trains a state of about 1 GB (weights and two moments of 88M parameters) in windows of 20 s,
alternately with one asynchronous save and without. The extra time of a window with a save is the
cost of a save; one save a minute costs that over 60 s.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from bench.trial import prepare_set, resolved_trial
from headway.spec.resolve import Resolved
from headway.train.trial import Trial

WINDOWS = int(os.environ.get("WINDOWS", "5"))
WINDOW_SECONDS = float(os.environ.get("WINDOW_SECONDS", "20"))
SAVES_EVERY_SECONDS = 60.0
COST_TARGET, RESTART_TARGET_SECONDS = 0.03, 8.0

# 12 layers of 7.1M and an embedding of 4096 x 768: 88M parameters, 1.06 GB with the moments.
RUN_FILE = """\
version: 1
name: bench
model:
  type: gpt2
  config: {n_layer: 12, n_head: 12, n_embd: 768, n_positions: 64, vocab_size: 4096}
data: {train: set, sequence_length: 32}
batch: {global: 2, micro: 2}
train_for: 1000000 steps
precision: bf16
track: []
evaluation: {every: 1000000 steps}
checkpoint: {every: 1000000 steps, keep: {last: 2}}
"""


def main() -> int:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as scratch:
        folder = Path(scratch)
        (folder / "run.yaml").write_text(RUN_FILE)
        prepare_set(folder, 200_000, 4096)
        resolved = resolved_trial(folder)
        trial = Trial(resolved)
        costs, held, wrote, size = _costs(trial, folder)
        trial.run.saver.wait()
        restart = _restart_seconds(resolved)
    cost = statistics.median(costs)
    line = {
        "name": "bench-save",
        "figure": round(cost, 4),
        "target": COST_TARGET,
        "pass": cost <= COST_TARGET and restart <= RESTART_TARGET_SECONDS,
        "spread": [round(min(costs), 4), round(max(costs), 4)],
        "held_seconds": [round(value, 3) for value in held],
        "write_seconds": [round(value, 3) for value in wrote],
        "gigabytes": round(size / 1e9, 3),
        "restart_seconds": round(restart, 2),
        "restart_target": RESTART_TARGET_SECONDS,
        "versions": {"torch": torch.__version__},
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(line))
    return 0


def _costs(trial: Trial, folder: Path) -> tuple[list[float], list[float], list[float], int]:
    """Of each save: its share of a window. And how long training was held, and writing took."""
    for _ in range(5):
        trial.advance()
    _save(trial)  # the first one makes its buffers
    trial.run.saver.wait()
    started = time.perf_counter()
    for _ in range(10):
        trial.advance()
    steps = max(10, round(WINDOW_SECONDS / ((time.perf_counter() - started) / 10)))
    costs, held = [], []
    for window in range(WINDOWS):
        plain = _window(trial, steps, save=False)[0]
        with_save, blocked = _window(trial, steps, save=True)
        trial.run.saver.wait()
        costs.append((with_save - plain) / SAVES_EVERY_SECONDS)
        held.append(blocked)
        print(
            f"window {window + 1}/{WINDOWS}: {steps} steps, {plain:.2f} s without, {with_save:.2f} "
            f"s with a save, held {blocked:.3f} s",
            file=sys.stderr,
        )
    saved = [e for e in trial.run.directory.events.read()[0] if e["event"] == "saved"]
    files = trial.run.directory.store.names("checkpoints")
    size = max(trial.run.directory.store.size(name) or 0 for name in files)
    return costs, held, [event["seconds"] for event in saved[1:]], size


def _save(trial: Trial) -> float:
    return trial.run.saver.start(trial.run.training, None)


def _window(trial: Trial, steps: int, save: bool) -> tuple[float, float]:
    held = 0.0
    started = time.perf_counter()
    for step in range(steps):
        if save and step == steps // 4:
            held = _save(trial)
        trial.advance()
    return time.perf_counter() - started, held


def _restart_seconds(resolved: Resolved) -> float:
    """From nothing but imports to the end of the next step."""
    started = time.perf_counter()
    trial = Trial(resolved, generation=2)
    assert trial.run.training.step > 0, "it resumed from the checkpoint"
    trial.advance()
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
