"""What the workers of torchrun and torchft train: the model and the batch that Headway's run file
describes, on samples of random tokens. A line in a file for every step that was committed.

Imported in an environment without Headway.
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
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

VOCABULARY, LENGTH, BATCH, NUM_SAMPLES, SEED = 1000, 128, 16, 1024, 1
FOLDER = Path(os.environ["FAULTS_FOLDER"])


class RandomSamples(Dataset):
    """Each sample with its number."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, number: int) -> tuple[int, Tensor]:
        chance = torch.Generator().manual_seed(number)
        return number, torch.randint(VOCABULARY, (LENGTH + 1,), generator=chance)


def make_model() -> nn.Module:
    torch.manual_seed(SEED)
    shape = GPT2Config(
        vocab_size=VOCABULARY,
        n_layer=4,
        n_head=4,
        n_embd=256,
        n_positions=LENGTH,
        use_cache=False,
    )
    return GPT2LMHeadModel(shape)


def mean_loss(model: nn.Module, rows: Tensor) -> Tensor:
    logits = model(rows[:, :-1]).logits
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), rows[:, 1:].flatten())


def load(name: str) -> Any:
    path = FOLDER / name
    return torch.load(path, weights_only=False) if path.exists() else None


def save(name: str, state: object) -> None:
    """Whole or not at all."""
    new = FOLDER / f"{name}.{os.getpid()}"
    torch.save(state, new)
    new.rename(FOLDER / name)


def note(step: int, generation: int, part: int, epoch: int, numbers: Tensor) -> None:
    samples = [(epoch, int(number)) for number in numbers]
    line = [time.time(), step, generation, part, samples]
    with (FOLDER / f"part-{part}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
