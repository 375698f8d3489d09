"""`make bench-shard`: tokens/s of sharded workers over those of a bare FSDP2 loop on the same work.

One copy of the model over two processes, beside FSDP2; two copies of two, beside FSDP2's own
two-dimensional mesh, which sums over copies in its hooks. Both contenders have the same units of
sharding and one micro-batch a process; they take turns of a few steps in the same processes, so
that whatever the machine does meanwhile falls on both. The figure is the lower of the two medians
over rounds of the ratio of their speeds; the spread is its quartiles. Beside them the collectives
that the first process launches in a step, and their bytes: those do not depend on the machine.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from bench import loop
from bench.loop import BATCH, LENGTH, THREADS, VOCABULARY, all_tokens, make_model, make_optimizer
from bench.trial import gpt2_run_file, prepare_set, resolved_trial
from headway.spec.resolve import Resolved
from headway.train.baselines import plain_step
from headway.train.trial import Trial
from support.launches import Launches

ROUNDS = int(os.environ.get("ROUNDS", "10"))
TURN_STEPS = int(os.environ.get("TURN_STEPS", "4"))
WARMUP = 2
RANKS = 2
"""Processes of a copy."""
TARGET = 0.98
SHAPE = {**loop.SHAPE, "tie_word_embeddings": False}
CONTENDERS = ("headway", "fsdp2")


@dataclass(frozen=True)
class Comparison:
    ratios: list[float]
    launches: dict[str, dict[str, Any]]
    """By contender."""

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def spread(self) -> list[float]:
        quartiles = statistics.quantiles(self.ratios, n=4)
        return [round(quartiles[0], 4), round(quartiles[2], 4)]


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "run.yaml").write_text(gpt2_run_file(SHAPE, BATCH, THREADS))
        prepare_set(folder, 2_000_000, VOCABULARY)
        found = {
            "one copy over FSDP2": _compare(folder, copies=1),
            "two copies over its mesh": _compare(folder, copies=2),
        }
    worst = min(found.values(), key=lambda comparison: comparison.median)
    line = {
        "name": "bench-shard",
        "figure": round(worst.median, 4),
        "target": TARGET,
        "pass": worst.median >= TARGET,
        "spread": worst.spread,
        "ratios": {
            name: {
                "median": round(one.median, 4),
                "spread": one.spread,
                "all": [round(ratio, 3) for ratio in one.ratios],
            }
            for name, one in found.items()
        },
        "launches": {name: one.launches for name, one in found.items()},
        "versions": {"torch": torch.__version__},
        "threads": THREADS,
    }
    print(json.dumps(line))
    return 0


def _compare(folder: Path, copies: int) -> Comparison:
    workers = copies * RANKS
    resolved = resolved_trial(
        folder,
        f"name=bench-{copies}",
        "precision=fp32",
        f"batch.global={BATCH * workers}",
        f"resources.accelerators=cpu:{RANKS}",
        "shard=node",
        nodes=copies,
    )
    context = get_context("spawn")
    pipes = [context.Pipe() for _ in range(workers)]
    processes = [
        context.Process(
            target=_work, args=(rank, copies, resolved, folder, pipes[rank][1]), daemon=True
        )
        for rank in range(workers)
    ]
    for process in processes:
        process.start()
    ours = [ours for ours, _ in pipes]

    def ask(asked: tuple[str, str]) -> list[Any]:
        for pipe in ours:
            pipe.send(asked)
        return [pipe.recv() for pipe in ours]

    def turn(contender: str) -> float:
        """Seconds of all workers at once: they wait for each other."""
        return max(ask(("turn", contender)))

    for contender in CONTENDERS * WARMUP:
        turn(contender)
    launches = {contender: ask(("count", contender))[0] for contender in CONTENDERS}
    ratios = []
    for number in range(ROUNDS):
        # Another one goes first in every round: a machine that warms up favours nobody.
        order = CONTENDERS if number % 2 else CONTENDERS[::-1]
        seconds = {contender: turn(contender) for contender in order}
        ratios.append(seconds["fsdp2"] / seconds["headway"])
        speed = TURN_STEPS * resolved.tokens_per_step / seconds["headway"]
        print(
            f"{copies} copies, round {number + 1}/{ROUNDS}: {ratios[-1]:.3f} "
            f"(headway at {speed:.0f} tokens/s)",
            file=sys.stderr,
        )
    for pipe, process in zip(ours, processes, strict=True):
        pipe.send(("end", ""))
        process.join(30)
    return Comparison(ratios, launches)


def _work(rank: int, copies: int, resolved: Resolved, folder: Path, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(resolved.threads)
    trial = Trial(resolved, rank=rank, store=folder / f"store-{copies}")
    mesh = trial.world.placement.shard_mesh
    if copies > 1:
        mesh = init_device_mesh("cpu", (copies, RANKS), mesh_dim_names=("replicate", "shard"))
    assert mesh is not None
    contenders = {
        "headway": trial.advance,
        "fsdp2": _fsdp2(rank, trial.world.num_workers, mesh, folder),
    }
    while True:
        what, contender = pipe.recv()
        if what == "end":
            return
        step = contenders[contender]
        dist.barrier()
        pipe.send(_launches_of(step) if what == "count" else _seconds_of(step))


def _seconds_of(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    for _ in range(TURN_STEPS):
        step()
    return time.perf_counter() - began


def _launches_of(step: Callable[[], None]) -> dict[str, Any]:
    """Number and bytes of a step's collectives, by operator."""
    with Launches() as launches:
        step()
    return {"number": dict(Counter(launches.log)), "bytes": dict(launches.bytes)}


def _fsdp2(rank: int, num_workers: int, mesh: DeviceMesh, folder: Path) -> Callable[[], None]:
    model = make_model(SHAPE)
    model.config.use_cache = False
    gpt2 = model.transformer
    units: list[Any] = [*gpt2.h, [gpt2.ln_f, model.lm_head], gpt2.wte, model]
    for unit in units:
        fully_shard(unit, mesh=mesh)
    trained: nn.Module = model
    optimizer, tokens = make_optimizer(trained), all_tokens(folder)
    at = rank * BATCH * LENGTH

    def step() -> None:
        nonlocal at
        rows = tokens[at : at + BATCH * LENGTH + 1]
        at = (at + num_workers * BATCH * LENGTH) % (len(tokens) - BATCH * LENGTH - 1)
        inputs, targets = rows[:-1].view(BATCH, LENGTH), rows[1:].view(BATCH, LENGTH)
        plain_step(trained, optimizer, inputs, targets, nullcontext()).item()

    return step


if __name__ == "__main__":
    sys.exit(main())
