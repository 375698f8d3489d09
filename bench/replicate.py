"""`make bench-replicate`: tokens/s of two workers over those of torch's DistributedDataParallel,
and what being able to lose a worker costs a step.

Two processes, one model shape, the same gloo transport. Headway and DDP take turns of a few steps
in the same processes, so that whatever the machine does meanwhile falls on both; the figure is the
median over rounds of the ratio of their speeds, the spread its quartiles. The cost of membership is
the difference in step time of a small model between whole runs with `elastic: live` and with
`restart`, also in turns.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bench.loop import BATCH, LENGTH, RUN_FILE, VOCABULARY, all_tokens, make_model, make_optimizer
from bench.trial import SET, prepare_set, resolved_trial
from headway.spec.resolve import Resolved
from headway.train.baselines import plain_step
from headway.train.trial import Trial
from support.live import LiveRun

ROUNDS = int(os.environ.get("ROUNDS", "30"))
RUNS = int(os.environ.get("RUNS", "5"))
TURN_STEPS = 2
WARMUP = 3
WORKERS = 2
TARGET, MEMBERSHIP_TARGET_SECONDS = 0.98, 0.002
STEPS = 400
"""Length of a run that is only timed."""


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "run.yaml").write_text(RUN_FILE)
        prepare_set(folder, 2_000_000, VOCABULARY)
        ratios = _over_ddp(folder)
        cost, costs = _membership(folder)
    quartiles = [round(q, 4) for q in statistics.quantiles(ratios, n=4)]
    figure = statistics.median(ratios)
    line = {
        "name": "bench-replicate",
        "figure": round(figure, 4),
        "target": TARGET,
        "pass": figure >= TARGET and cost <= MEMBERSHIP_TARGET_SECONDS,
        "spread": [quartiles[0], quartiles[2]],
        "membership_seconds": {"median": cost, "all": costs, "target": MEMBERSHIP_TARGET_SECONDS},
        "versions": {"torch": torch.__version__},
    }
    print(json.dumps(line))
    return 0


def _over_ddp(folder: Path) -> list[float]:
    """Speed of Headway over that of DDP, round by round."""
    overrides = ("precision=fp32", f"batch.global={BATCH * WORKERS}")
    resolved = resolved_trial(folder, *overrides, nodes=WORKERS)
    context = get_context("spawn")
    pipes = [context.Pipe() for _ in range(WORKERS)]
    processes = [
        context.Process(target=_work, args=(rank, resolved, folder, pipes[rank][1]))
        for rank in range(WORKERS)
    ]
    for process in processes:
        process.start()
    ours = [ours for ours, _ in pipes]

    def turn(contender: str) -> float:
        """Seconds of all workers at once: they wait for each other."""
        for pipe in ours:
            pipe.send(contender)
        return max(pipe.recv() for pipe in ours)

    for contender in ("headway", "ddp") * WARMUP:
        turn(contender)
    ratios = []
    for number in range(ROUNDS):
        first, second = ("headway", "ddp") if number % 2 else ("ddp", "headway")
        seconds = {first: turn(first), second: turn(second)}
        ratios.append(seconds["ddp"] / seconds["headway"])
        print(f"round {number + 1}/{ROUNDS}: {ratios[-1]:.3f}", file=sys.stderr)
    for pipe, process in zip(ours, processes, strict=True):
        pipe.send("end")
        process.join(30)
    return ratios


def _work(rank: int, resolved: Resolved, folder: Path, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    trial = Trial(resolved, rank=rank, store=folder / "store")
    contenders = {"headway": trial.advance, "ddp": _ddp(rank, folder)}
    while (asked := pipe.recv()) != "end":
        dist.barrier()
        began = time.perf_counter()
        for _ in range(TURN_STEPS):
            contenders[asked]()
        pipe.send(time.perf_counter() - began)


def _ddp(rank: int, folder: Path) -> Callable[[], None]:
    model = make_model()
    model.config.use_cache = False
    replicated = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer, tokens = make_optimizer(model), all_tokens(folder)
    at = rank * BATCH * LENGTH

    def step() -> None:
        nonlocal at
        rows = tokens[at : at + BATCH * LENGTH + 1]
        at += WORKERS * BATCH * LENGTH
        inputs, targets = rows[:-1].view(BATCH, LENGTH), rows[1:].view(BATCH, LENGTH)
        plain_step(replicated, optimizer, inputs, targets, nullcontext()).item()

    return step


def _membership(folder: Path) -> tuple[float, list[float]]:
    """Seconds a step that being able to lose a worker costs."""
    small = {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": LENGTH}
    costs = []
    for number in range(RUNS):
        # There and back: the second of a pair is often slower.
        turns = ("live", "restart", "restart", "live")
        seconds: dict[str, list[float]] = {"live": [], "restart": []}
        for turn, elastic in enumerate(turns):
            name = f"{elastic}-{number}-{turn}"
            options = [
                *("--set", f"name={name}", "--set", f"elastic={elastic}"),
                *("--set", f"train_for={STEPS} steps", "--set", f"data.train={folder / SET}"),
                *("--set", f"model.config={json.dumps(small)}", "--set", "batch.global=2"),
                *("--set", "batch.micro=1", "--set", "data.sequence_length=64"),
                *("--set", "track=[]", "--set", "precision=fp32"),
            ]
            with LiveRun(folder, name, WORKERS, *options) as run:
                output = run.end(180)
                assert run.process.returncode == 0, output
                steps = run.directory.steps()[20:]
            seconds[elastic].append(statistics.median(step["seconds"] for step in steps))
        cost = statistics.mean(seconds["live"]) - statistics.mean(seconds["restart"])
        costs.append(round(cost, 6))
        print(f"run {number + 1}/{RUNS}: {seconds}", file=sys.stderr)
    return statistics.median(costs), costs


if __name__ == "__main__":
    sys.exit(main())
