"""What the workers of torchrun and torchft train: the model and batch of bench/losses.py on random
tokens, a checkpoint every ten steps, and a line in a file for every committed step.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

BATCH, LENGTH, VOCABULARY = 16, 64, 1000
FOLDER, NODE = Path(os.environ["COMPARE_FOLDER"]), int(os.environ["COMPARE_NODE"])
CHECKPOINT = FOLDER / "checkpoint"


def make_model() -> nn.Module:
    torch.manual_seed(1)
    shape = GPT2Config(vocab_size=VOCABULARY, n_layer=2, n_head=4, n_embd=128, n_positions=LENGTH)
    shape.use_cache = False
    return GPT2LMHeadModel(shape)


def share_of_batch(step: int, part: int, num_parts: int) -> Tensor:
    chance = torch.Generator().manual_seed(step)
    return torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=chance)[part::num_parts]


def mean_loss(model: nn.Module, rows: Tensor) -> Tensor:
    logits = model(rows[:, :-1]).logits
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), rows[:, 1:].flatten())


def saved() -> dict[str, Any] | None:
    return torch.load(CHECKPOINT) if CHECKPOINT.exists() else None


def save(step: int, state: dict[str, Any]) -> None:
    if step % 10 == 0:
        torch.save(state, FOLDER / "checkpoint.new")
        (FOLDER / "checkpoint.new").rename(CHECKPOINT)


def note(step: int, rank: int | None, world: int, generation: int) -> None:
    line = {"time": time.time(), "step": step, "rank": rank, "world": world}
    with (FOLDER / f"node-{NODE}.jsonl").open("a") as file:
        file.write(json.dumps({**line, "generation": generation, "pid": os.getpid()}) + "\n")
