"""`make bench-fingerprint`: the cost of comparing the workers' weights at regular steps, as a
fraction of training.

Two processes, 18M parameters. Steps and comparisons take turns in the same processes, so that other
load on the machine affects both; the slower worker counts.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from bench.loop import BATCH, RUN_FILE, VOCABULARY
from bench.trial import prepare_set, resolved_trial
from headway.spec.resolve import Resolved
from headway.train.trial import Trial
from headway.train.weight_fingerprint import EVERY_STEPS, diverged_ranks

ROUNDS = int(os.environ.get("ROUNDS", "60"))
WARMUP = 3
WORKERS = 2
TARGET = 0.005

assert ROUNDS + WARMUP < EVERY_STEPS, "a step would compare, too"


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "run.yaml").write_text(RUN_FILE)
        prepare_set(folder, 2_000_000, VOCABULARY)
        rounds = _measure(folder)
    steps, compares = zip(*rounds, strict=True)
    step, compare = statistics.median(steps), statistics.median(compares)
    figure = compare / (EVERY_STEPS * step + compare)
    line = {
        "name": "bench-fingerprint",
        "figure": round(figure, 6),
        "target": TARGET,
        "pass": figure <= TARGET,
        "spread": {
            "every_steps": EVERY_STEPS,
            "step_seconds": _quartiles(steps),
            "compare_seconds": _quartiles(compares),
        },
        "versions": {"torch": torch.__version__},
    }
    print(json.dumps(line))
    return 0


def _measure(folder: Path) -> list[tuple[float, float]]:
    """Seconds of a step and of a comparison, round by round."""
    overrides = ("precision=fp32", f"batch.global={BATCH * WORKERS}")
    resolved = resolved_trial(folder, *overrides, nodes=WORKERS)
    context = get_context("spawn")
    pipes = [context.Pipe() for _ in range(WORKERS)]
    for rank, (_, theirs) in enumerate(pipes):
        context.Process(target=_work, args=(rank, resolved, folder, theirs), daemon=True).start()
    rounds = []
    for number in range(ROUNDS + WARMUP):
        found = [ours.recv() for ours, _ in pipes]
        slower = max(step for step, _ in found), max(compare for _, compare in found)
        if number >= WARMUP:
            rounds.append(slower)
        print(f"round {number + 1 - WARMUP}/{ROUNDS}: {slower}", file=sys.stderr)
    return rounds


def _work(rank: int, resolved: Resolved, folder: Path, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    trial = Trial(resolved, rank=rank, store=folder / "store")
    replicas = trial.world.replicas
    assert replicas is not None
    for _ in range(ROUNDS + WARMUP):
        step = _timed(trial.advance)
        compare = _timed(lambda: diverged_ranks(trial.run.training, replicas, kind=1))
        pipe.send((step, compare))
    dist.barrier()


def _timed(work: Callable[[], object]) -> float:
    dist.barrier()  # what one waits for the other before it is not this one's time
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _quartiles(values: tuple[float, ...]) -> list[float]:
    return [round(value, 5) for value in statistics.quantiles(values, n=4)]


if __name__ == "__main__":
    sys.exit(main())
