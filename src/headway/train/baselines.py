"""`python -m headway.train.baselines JOBS RANK`: tokens/s of Headway's loop beside a bare PyTorch
loop, DDP or FSDP2 of the same model.

Both are in the same processes and take turns of a few steps, so that whatever else the machine does
falls on both. JOBS is a file with a list of jobs, each a prepared run and what to compare it with.
The first worker prints a line of JSON for each job as soon as it is measured.
"""

from __future__ import annotations

import copy
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from headway.state.run_directory import RunDirectory
from headway.train.device import synchronize
from headway.train.models import find_blocks
from headway.train.optim import make_optimizer
from headway.train.precision import COMPUTE_DTYPE
from headway.train.trial import Trial

TURN_STEPS = 2
WARMUP_TURNS = 2
MIN_ROUNDS, MAX_ROUNDS = 3, 30


def plain_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    computing: AbstractContextManager[Any],
) -> torch.Tensor:
    """The least that trains a language model: its loss, not synchronised."""
    with computing:
        logits = model(inputs).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def measure(job: dict[str, Any], rank: int) -> dict[str, Any]:
    """COLLECTIVE. Figures of one job."""
    resolved = RunDirectory.open(job["run"]).read_spec()
    torch.set_num_threads(resolved.threads)
    trial = Trial(resolved, rank=rank, store=Path(job["store"]))
    contenders = {"headway": trial.advance, "other": _baseline(trial, job["against"])}
    for name in ("headway", "other") * WARMUP_TURNS:
        _turn_seconds(trial, contenders[name])
    rounds: list[dict[str, float]] = []
    began = time.perf_counter()
    while len(rounds) < MAX_ROUNDS:
        is_late = time.perf_counter() - began > job["seconds"]
        if len(rounds) >= MIN_ROUNDS and trial.world.any(is_late):  # COLLECTIVE
            break
        # Another one goes first in every round: a machine that warms up favours nobody.
        order = ("headway", "other") if len(rounds) % 2 else ("other", "headway")
        rounds.append({name: _turn_seconds(trial, contenders[name]) for name in order})
    figures = _figures(trial, rounds)
    trial.close()
    return {**job, **figures}


def _turn_seconds(trial: Trial, step: Callable[[], None]) -> float:
    trial.world.barrier()  # COLLECTIVE
    began = time.perf_counter()
    for _ in range(TURN_STEPS):
        step()
    synchronize(trial.world.device)  # SYNC
    return time.perf_counter() - began


def _baseline(trial: Trial, against: str) -> Callable[[], None]:
    """A step of it, on tokens that are on the device already."""
    from transformers import AutoModelForCausalLM

    resolved, device = trial.run.training.resolved, trial.world.device
    precision = resolved.run.precision
    config: Any = copy.deepcopy(trial.run.built.module.config)
    plain = AutoModelForCausalLM.from_config(
        config, attn_implementation="sdpa", dtype=torch.float32
    ).to(device)
    model: nn.Module = plain
    computing: AbstractContextManager[Any] = nullcontext()
    if precision != "fp32" and against != "fsdp2":
        computing = torch.autocast(device.type, dtype=COMPUTE_DTYPE[precision])
    if against == "ddp":
        model = DistributedDataParallel(plain, gradient_as_bucket_view=True)
    elif against == "fsdp2":
        policy = MixedPrecisionPolicy()
        if precision != "fp32":
            policy = MixedPrecisionPolicy(COMPUTE_DTYPE[precision], torch.float32)
        for part in [*find_blocks(plain), plain]:
            fully_shard(part, mesh=trial.world.placement.shard_mesh, mp_policy=policy)
    optimizer = make_optimizer(resolved.run.optimizer, model)
    shape = (resolved.micro, resolved.run.data.sequence_length)
    inputs, targets = (torch.randint(config.vocab_size, shape, device=device) for _ in range(2))

    def step() -> None:
        plain_step(model, optimizer, inputs, targets, computing).item()  # SYNC, as Headway's

    return step


def _figures(trial: Trial, rounds: list[dict[str, float]]) -> dict[str, Any]:
    tokens = TURN_STEPS * trial.run.training.resolved.tokens_per_step
    ratios = [one["other"] / one["headway"] for one in rounds]
    quartiles = statistics.quantiles(ratios, n=4)
    speeds = {name: tokens / statistics.median(one[name] for one in rounds) for name in rounds[0]}
    meter = trial.run.meter
    return {
        "workers": trial.world.num_workers,
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(quartiles[0], 3), round(quartiles[2], 3)],
        "rounds": len(rounds),
        "tokens_per_second": round(speeds["headway"], 1),
        "other_tokens_per_second": round(speeds["other"], 1),
        "mfu": meter.mfu(speeds["headway"]),
        "other_mfu": meter.mfu(speeds["other"]),
        "no_mfu": meter.no_mfu_because(),
    }


def main(jobs: list[dict[str, Any]], rank: int) -> None:
    for job in jobs:
        figures = measure(job, rank)
        if rank == 0:
            print(json.dumps(figures), flush=True)
        gc.collect()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2]))
