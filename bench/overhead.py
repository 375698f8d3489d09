"""`make bench-overhead`: what Headway adds to a step, in milliseconds.

One process, one thread and a tiny model, so that little but the loops themselves is timed.
Headway's loop and the bare one of bench-loop take turns of 20 steps. The figure is the median over
rounds of their difference for each step; the spread is its quartiles. `processor` is the same by
the processor time of all threads, which other load on the machine affects less.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bench.loop import all_tokens, bare, make_model
from bench.trial import gpt2_run_file, prepare_set, resolved_trial
from headway.train.trial import Trial

ROUNDS = int(os.environ.get("ROUNDS", "50"))
WARMUP, STEPS = 20, 20
TARGET = 1.5
LENGTH, BATCH, VOCABULARY = 64, 4, 512
SHAPE = {"n_layer": 1, "n_head": 1, "n_embd": 16, "n_positions": LENGTH, "vocab_size": VOCABULARY}


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "run.yaml").write_text(gpt2_run_file(SHAPE, BATCH, threads=1))
        prepare_set(folder, 500_000, VOCABULARY)
        trial = Trial(resolved_trial(folder, "precision=fp32"))
        plain = bare(make_model(SHAPE), all_tokens(folder), "fp32", BATCH, LENGTH)

        def headway(count: int) -> None:
            for _ in range(count):
                trial.advance()

        headway(WARMUP)
        plain(WARMUP)
        by_wall, by_processor, plain_seconds = _measure(headway, plain)
    wall, processor = _milliseconds(by_wall), _milliseconds(by_processor)
    line = {
        "name": "bench-overhead",
        "figure": wall["median"],
        "target": TARGET,
        "pass": wall["median"] <= TARGET,
        "spread": wall,
        "processor": processor,
        "bare": _milliseconds(plain_seconds),
        "unit": "ms a step",
        "versions": {"torch": torch.__version__},
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(line))
    return 0


def _measure(
    headway: Callable[[int], None], plain: Callable[[int], object]
) -> tuple[list[float], list[float], list[float]]:
    """For each round: the difference by the clock and by the processor's, and the bare loop's
    seconds."""
    by_wall, by_processor, plain_seconds = [], [], []
    for turn in range(ROUNDS):
        # Another one goes first in every round: a machine that warms up favours nobody.
        pair = {}
        for contender in (headway, plain) if turn % 2 else (plain, headway):
            began, busy = time.perf_counter(), time.process_time()
            contender(STEPS)
            pair[contender] = (time.perf_counter() - began, time.process_time() - busy)
        by_wall.append(pair[headway][0] - pair[plain][0])
        by_processor.append(pair[headway][1] - pair[plain][1])
        plain_seconds.append(pair[plain][0])
    return by_wall, by_processor, plain_seconds


def _milliseconds(rounds: list[float]) -> dict[str, float]:
    """Of one step."""
    low, median, high = statistics.quantiles([1000 * one / STEPS for one in rounds], n=4)
    return {"low": round(low, 3), "median": round(median, 3), "high": round(high, 3)}


if __name__ == "__main__":
    sys.exit(main())
