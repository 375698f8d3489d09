"""A training of one worker, real but for its size: a set on disk, a small network, AdamW."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from headway.clock import SystemClock
from headway.data.reading.tokenset import Reading, Rows, TokenSet
from headway.spec.run import Guard, RunFile
from headway.train.copies import Copies, cast_inputs
from headway.train.feed import Feed
from headway.train.guard import LossGuard
from headway.train.models import Built
from headway.train.objectives import token_loss
from headway.train.precision import LossScale, Precision
from headway.train.replicate import Gradients
from headway.train.shard import shard_model
from headway.train.step import Training
from headway.train.world import Place
from support.token_sets import write_set

LENGTH, BATCH, MICRO, VOCABULARY, WIDTH = 8, 4, 2, 90, 16
LR = 1e-3
CPU = Place(torch.device("cpu"))


class Named(TokenSet):
    """Notes which thread reads."""

    readers: list[str]

    def read(self, samples: np.ndarray, sequence_length: int) -> Rows:
        self.readers.append(threading.current_thread().name)
        return super().read(samples, sequence_length)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)
        self.seen: list[torch.dtype] = []
        """Of the residual stream."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.dtype)
        return x + self.dropout(nn.functional.gelu(self.linear(self.norm(x))))


class Network(nn.Module):
    """A transformer without attention: embedding, which is tied to the head, and blocks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.register_buffer("positions", torch.randn(LENGTH, WIDTH))
        self.first = nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        x = self.first(self.embedding(inputs) + self.positions)  # the positions are fp32
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


def small_training(folder: Path, precision: Precision = "fp32", place: Place = CPU) -> Training:
    """Whole or, with a mesh, sharded. Its feed is to be closed."""
    if not (folder / "set").exists():
        tokens = [(7 * number + number // 50) % VOCABULARY for number in range(4001)]
        write_set(folder / "set", [(tokens, None)])
    opened = Named.open(folder / "set", Reading())
    assert isinstance(opened, Named)
    opened.readers = []
    run = RunFile(
        version=1,
        seed=3,
        precision=precision,
        data={"sequence_length": LENGTH},
        optimizer={"lr": LR},
    )
    model = Network()
    built = Built(model, list(model.blocks), None, is_transformers=False)
    cast_inputs(built, precision, place)
    if place.shard_mesh is not None:
        shard_model(built, place, precision)
    resolved: Any = SimpleNamespace(run=run, micro=MICRO)
    return Training(
        resolved=resolved,
        total_steps=100,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=LR, fused=True),
        objective=token_loss,
        feed=Feed(
            opened,
            sequence_length=LENGTH,
            global_batch=BATCH,
            micro=MICRO,
            seed=3,
            device=place.device,
            objective="causal",
            masking=None,
            clock=SystemClock(),
        ),
        scale=LossScale(precision),
        guard=LossGuard(Guard()),
        gradients=Gradients(list(model.parameters())),
        copies=Copies(model, precision, is_sharded=place.shard_mesh is not None),
    )
