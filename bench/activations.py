"""`make bench-activations`: what `watch: {activations: {every: 100 steps}}` costs.

One process, a GPT-2 of 18M parameters, a step of one micro-batch, which is the dearest case: a pass
looks at one micro-batch whatever the step has. Plain steps and passes take turns, so that whatever
the machine does meanwhile falls on both. The figure is the time of one pass, recording included,
over that of 100 steps: the median over rounds, its spread the quartiles; the worse of the two
precisions.
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
from headway.train.activations import measure_activations
from headway.train.trial import Trial

ROUNDS = int(os.environ.get("ROUNDS", "25"))
WARMUP = 2
EVERY = 100
TARGET = 0.02
LENGTH, BATCH, VOCABULARY = 256, 4, 8192
SHAPE = {"n_layer": 6, "n_head": 7, "n_embd": 448, "n_positions": LENGTH, "vocab_size": VOCABULARY}
RUN_FILE = f"""\
version: 1
name: bench
model: {{type: gpt2, config: {json.dumps(SHAPE)}}}
data: {{train: set, sequence_length: {LENGTH}}}
batch: {{global: {BATCH}, micro: {BATCH}}}
train_for: 1000000 steps
schedule: {{type: constant, warmup: 0 steps}}
evaluation: {{every: 1000000 steps}}
checkpoint: {{every: 1000000 steps}}
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "run.yaml").write_text(RUN_FILE)
        prepare_set(folder, 1_000_000, VOCABULARY)
        costs = {precision: _cost(folder, precision) for precision in ("fp32", "bf16")}
    worst = max(costs, key=lambda precision: costs[precision][0])
    figure, spread = costs[worst]
    line = {
        "name": "bench-activations",
        "figure": figure,
        "target": TARGET,
        "pass": figure <= TARGET,
        "spread": spread,
        "costs": {precision: median for precision, (median, _) in costs.items()},
        "versions": {"torch": torch.__version__},
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(line))
    return 0


def _cost(folder: Path, precision: str) -> tuple[float, list[float]]:
    """Median over rounds of the share of time that passes take, with its quartiles."""
    trial = Trial(resolved_trial(folder, f"precision={precision}", f"name=bench-{precision}"))
    run = trial.run

    def step() -> float:
        began = time.perf_counter()
        trial.advance()
        return time.perf_counter() - began

    def pass_over_a_micro_batch() -> float:
        began = time.perf_counter()
        figures = measure_activations(run.training, run.built, trial.world)
        run.recorder.activations(run.training.step, figures)
        return time.perf_counter() - began

    for _ in range(WARMUP):
        step()
        pass_over_a_micro_batch()
    shares, passes, steps = [], [], []
    for turn in range(ROUNDS):
        # Another one goes first in every round: a machine that warms up favours nobody.
        if turn % 2:
            one_pass, one_step = pass_over_a_micro_batch(), step()
        else:
            one_step, one_pass = step(), pass_over_a_micro_batch()
        shares.append(one_pass / (EVERY * one_step))
        passes.append(one_pass)
        steps.append(one_step)
    low, _, high = statistics.quantiles(shares, n=4)
    print(
        f"{precision}: a pass {statistics.median(passes):.3f} s, a step "
        f"{statistics.median(steps):.3f} s, {ROUNDS} rounds",
        file=sys.stderr,
    )
    return round(statistics.median(shares), 5), [round(low, 5), round(high, 5)]


if __name__ == "__main__":
    sys.exit(main())
