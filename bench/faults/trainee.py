"""What the workers of the other systems train: the model and the batch that Headway's run file
describes, on samples of random tokens. They note each step that they commit, as a line in a file.

Imported in an environment without Headway.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

from bench.faults.order import NUM_SAMPLES, samples_of_step

VOCABULARY, LENGTH, SEED = 1000, 128, 1
FOLDER = Path(os.environ["FAULTS_FOLDER"])


class RandomSamples(Dataset):
    """Each sample with its number."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, number: int) -> tuple[int, Tensor]:
        chance = torch.Generator().manual_seed(number)
        return number, torch.randint(VOCABULARY, (LENGTH + 1,), generator=chance)


def share_of_step(step: int, part: int, parts: int) -> tuple[int, Tensor, Tensor]:
    """Return the epoch, the numbers of this part's samples, and the samples."""
    epoch, numbers = samples_of_step(step)
    mine, samples = numbers[part::parts], RandomSamples()
    return epoch, torch.tensor(mine), torch.stack([samples[number][1] for number in mine])


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


def note(step: int, generation: int | str, part: int, epoch: int, numbers: Tensor) -> None:
    samples = [(epoch, int(number)) for number in numbers]
    line = [time.time(), step, generation, part, samples]
    with (FOLDER / f"part-{part}-{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def best_interval(save_seconds: float, step_seconds: float, fault_seconds: float) -> int:
    """Return the steps between two saves by Young's rule: the root of twice a save's time and the
    time between two faults."""
    return max(1, round(math.sqrt(2 * save_seconds * fault_seconds) / step_seconds))


def keep_interval(steps: int) -> None:
    (FOLDER / "interval").write_text(str(steps))
