"""`make bench-loop`: tokens/s of Headway's loop over those of a bare PyTorch loop.

One process, one model shape, one prepared set, the same settings and threads; each contender has
its own copy of the model. Headway and one other take turns of a step each, so that other load on
the machine affects both. The figure is the median over rounds of the ratio of their speeds; the
spread is its quartiles.

    bare      forward, loss, backward, clip, AdamW; batches sliced out of a ready tensor
    nanogpt   the same model in the manner of nanoGPT's loop: random crops out of a memory map,
              autocast, gradient scaler, clipping, a loss read every 10 steps
    trainer   transformers' Trainer
    headway   the loop that `headway run` runs: order, sums, guard, metrics, TensorBoard
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from bench.trial import NO_DROPOUT, gpt2_run_file, prepare_set, resolved_trial
from headway.data.reading.token_set import TokenSet
from headway.state.store import Store
from headway.train.baselines import plain_step
from headway.train.trial import Trial

ROUNDS = int(os.environ.get("ROUNDS", "40"))
WARMUP = 3
THREADS = int(os.environ.get("THREADS", "1"))
"""One by default: with a thread for every core, other load on the machine slows down a step."""
LENGTH, BATCH, VOCABULARY = 256, 4, 8192
SHAPE = {"n_layer": 6, "n_head": 7, "n_embd": 448, "n_positions": LENGTH, "vocab_size": VOCABULARY}
TARGETS = {"bare": 0.99, "nanogpt": 0.99, "trainer": 1.0}

Precision = Literal["fp32", "bf16"]
Contender = Callable[[int], float]
"""Takes so many steps and returns the seconds they took."""

RUN_FILE = gpt2_run_file(SHAPE, BATCH, THREADS)


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "run.yaml").write_text(RUN_FILE)
        prepare_set(folder, 2_000_000, VOCABULARY)
        results = {precision: _compare(folder, precision) for precision in ("fp32", "bf16")}
    worst = min(results[p]["bare"][0] for p in results)
    ratios = {
        f"{precision} over {other}": {"median": round(median, 4), "spread": spread}
        for precision, found in results.items()
        for other, (median, spread) in found.items()
    }
    passed = all(
        median >= TARGETS[other]
        for found in results.values()
        for other, (median, _) in found.items()
    )
    line = {
        "name": "bench-loop",
        "figure": round(worst, 4),
        "target": TARGETS["bare"],
        "pass": passed,
        "spread": results[min(results, key=lambda p: results[p]["bare"][0])]["bare"][1],
        "ratios": ratios,
        "versions": {"torch": torch.__version__},
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(line))
    return 0


def _compare(folder: Path, precision: Precision) -> dict[str, tuple[float, list[float]]]:
    """Median ratio of Headway's speed to each other one's, with its quartiles."""
    headway = _headway(folder, precision)
    found = {}
    for name, make in (("bare", _same_bare), ("nanogpt", _nanogpt), ("trainer", _trainer)):
        other = make(folder, precision)
        # Turns of one step are the finest interleaving there is. The Trainer sets itself up anew
        # at every call, so its turns are longer, and there are fewer.
        steps, rounds = (4, max(3, ROUNDS // 5)) if name == "trainer" else (1, ROUNDS)
        for contender in (headway, other):
            contender(WARMUP)
        ratios = []
        for turn in range(rounds):
            # Another one goes first in every round: a machine that warms up favours nobody.
            if turn % 2:
                ours, its = headway(steps), other(steps)
            else:
                its, ours = other(steps), headway(steps)
            ratios.append(its / ours)
        quartiles = [round(q, 4) for q in statistics.quantiles(ratios, n=4)]
        found[name] = (statistics.median(ratios), [quartiles[0], quartiles[2]])
        speed = steps * BATCH * LENGTH / ours
        print(
            f"{precision} over {name}: {found[name][0]:.4f} of {rounds} rounds, quartiles "
            f"{quartiles[0]} to {quartiles[2]} (headway last at {speed:.0f} tokens/s)",
            file=sys.stderr,
        )
    return found


def _headway(folder: Path, precision: Precision) -> Contender:
    trial = Trial(resolved_trial(folder, f"precision={precision}", f"name=bench-{precision}"))

    def steps(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            trial.advance()
        return time.perf_counter() - started

    return steps


def make_model(shape: Mapping[str, Any] = SHAPE) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**shape, **NO_DROPOUT, bos_token_id=0, eos_token_id=0))


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)


def _context(precision: Precision) -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16")


def _same_bare(folder: Path, precision: Precision) -> Contender:
    return bare(make_model(), all_tokens(folder), precision, BATCH, LENGTH)


def bare(
    model: GPT2LMHeadModel, tokens: torch.Tensor, precision: Precision, batch: int, length: int
) -> Contender:
    """The least that trains such a model."""
    model.config.use_cache = False
    optimizer = make_optimizer(model)
    at = 0

    def steps(count: int) -> float:
        nonlocal at
        started = time.perf_counter()
        for _ in range(count):
            rows = tokens[at : at + batch * length + 1]
            at = (at + batch * length) % (len(tokens) - batch * length - 1)
            inputs, targets = rows[:-1].view(batch, length), rows[1:].view(batch, length)
            plain_step(model, optimizer, inputs, targets, _context(precision))
        return time.perf_counter() - started

    return steps


def _nanogpt(folder: Path, precision: Precision) -> Contender:
    model = make_model()
    model.config.use_cache = False
    optimizer = make_optimizer(model)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    shard = folder / "set" / "shards" / "00000.tokens"
    drawn = torch.Generator().manual_seed(1)
    done = 0

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        data = np.memmap(shard, dtype=np.uint16, mode="r")  # anew each time, as nanoGPT does
        starts = torch.randint(len(data) - LENGTH, (BATCH,), generator=drawn)
        rows = np.stack([data[i : i + LENGTH + 1] for i in starts]).astype(np.int64)
        return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())

    def steps(count: int) -> float:
        nonlocal done
        started = time.perf_counter()
        for _ in range(count):
            for group in optimizer.param_groups:
                group["lr"] = 3e-4
            inputs, targets = batch()
            with _context(precision):
                logits = model(inputs).logits
                loss = F.cross_entropy(logits.view(-1, VOCABULARY).float(), targets.flatten())
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            if done % 10 == 0:
                loss.item()
            done += 1
        return time.perf_counter() - started

    return steps


def _trainer(folder: Path, precision: Precision) -> Contender:
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    tokens = all_tokens(folder)
    count = (len(tokens) - 1) // LENGTH
    rows = [tokens[i * LENGTH : (i + 1) * LENGTH] for i in range(count)]
    dataset = [{"input_ids": row, "labels": row} for row in rows]
    model = make_model()
    moments: list[float] = []

    class Times(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            moments.append(time.perf_counter())

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            moments.append(time.perf_counter())

    def steps(count: int) -> float:
        moments.clear()
        # One step more than is timed: the first of every call makes the optimizer's state.
        arguments = TrainingArguments(
            output_dir=str(folder / "trainer"),
            max_steps=count + 1,
            per_device_train_batch_size=BATCH,
            learning_rate=3e-4,
            adam_beta2=0.95,
            weight_decay=0.1,
            max_grad_norm=1.0,
            lr_scheduler_type="constant",
            bf16=precision == "bf16",
            optim="adamw_torch_fused",
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=dataset, callbacks=[Times()])
        trainer.remove_callback(PrinterCallback)  # stdout is for the figures
        trainer.train()
        return moments[-1] - moments[1]

    return steps


def all_tokens(folder: Path) -> torch.Tensor:
    opened = TokenSet.open(Store(folder / "set"))
    raw = np.fromfile(folder / "set" / "shards" / "00000.tokens", dtype=np.uint16)
    assert len(raw) == opened.manifest.num_tokens, "small enough for one shard"
    return torch.from_numpy(raw.astype(np.int64))


if __name__ == "__main__":
    sys.exit(main())
