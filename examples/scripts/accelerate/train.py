"""A small transformer encoder learns to say which symbol a sequence has most of; with Accelerate.

    PROJECT=out python train.py
    PROJECT=out torchrun --nproc-per-node 2 train.py

--project instead of the variable is as good. Every 20 steps the whole state is saved to
PROJECT/step-NUMBER, in a folder of another name until it is complete. A start continues from the
newest.
"""

import argparse
import os
import shutil
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

SYMBOLS = 8
LENGTH = 32
BATCH = 96
"""Over all processes."""


def sequences(count: int, seed: int) -> TensorDataset:
    chance = torch.Generator().manual_seed(seed)
    weights = torch.rand(count, SYMBOLS, generator=chance) + 0.2
    symbols = torch.multinomial(weights, LENGTH, replacement=True, generator=chance)
    counts = F.one_hot(symbols, SYMBOLS).sum(1)
    return TensorDataset(symbols, counts.argmax(1))


class Encoder(nn.Module):
    def __init__(self, width: int = 48, layers: int = 2) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.symbols(symbols)).mean(1))


class Progress:
    """How far training is, saved with the rest."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def save(accelerator: Accelerator, folder: Path, keep: int = 3) -> None:
    """Each process writes a part; only when all have is the folder given its name."""
    unfinished = folder.with_suffix(".new")
    accelerator.save_state(str(unfinished))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        unfinished.rename(folder)
        for old in checkpoints(folder.parent)[:-keep]:
            shutil.rmtree(old)


def checkpoints(project: Path) -> list[Path]:
    """Oldest first."""
    return sorted(path for path in project.glob("step-*") if path.suffix != ".new")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--project", type=Path, default=os.environ.get("PROJECT", "out"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20)
    arguments = parser.parse_args()
    project = Path(arguments.project)

    # On CPUs it forms no group unless it is told that they are meant.
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(1)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = DataLoader(
        sequences(4800, seed=1), BATCH // accelerator.num_processes, shuffle=True, drop_last=True
    )
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    newest = checkpoints(project)[-1:]
    accelerator.wait_for_everyone()  # all have looked before the first one saves
    if newest:
        accelerator.load_state(str(newest[0]))
        accelerator.print(f"continuing from {newest[0]}", flush=True)

    while progress.step < arguments.steps:
        epoch, done = divmod(progress.step, len(data))
        data.set_epoch(epoch)
        for symbols, most in accelerator.skip_first_batches(data, done):
            began = time.monotonic()
            loss = F.cross_entropy(model(symbols), most)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            progress.step += 1
            seconds = time.monotonic() - began
            accelerator.print(
                f"step {progress.step} loss {loss.item():.4f} {seconds:.3f} s", flush=True
            )
            if progress.step % arguments.save_every == 0 or progress.step == arguments.steps:
                save(accelerator, project / f"step-{progress.step:06d}")
            if progress.step == arguments.steps:
                break

    if accelerator.is_main_process:
        accelerator.save_model(model, str(project / "model"))
    accelerator.end_training()


if __name__ == "__main__":
    main()
