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
from headway.data.reading.token_set import ReadOptions, TokenRows, TokenSet
from headway.spec.run_file import GuardConfig, RunFile
from headway.state.store import Store
from headway.train.feed import Feed
from headway.train.fsdp import parameters_by_unit, shard_model
from headway.train.gradient_all_reduce import GradientReducer
from headway.train.loss_guard import LossGuard
from headway.train.models import BuiltModel
from headway.train.objectives import token_loss
from headway.train.precision import LossScale, Precision
from headway.train.step import Training
from headway.train.weight_copies import WeightCopies, cast_inputs
from headway.train.world import RankPlacement
from support.token_sets import write_set

LENGTH, BATCH, MICRO, VOCABULARY, WIDTH = 8, 4, 2, 90, 16
LR = 1e-3
CPU = RankPlacement(torch.device("cpu"))


class Named(TokenSet):
    """Notes which thread reads."""

    readers: list[str]

    def read(self, samples: np.ndarray, sequence_length: int) -> TokenRows:
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


def small_training(
    folder: Path, precision: Precision = "fp32", placement: RankPlacement = CPU
) -> Training:
    """Whole or, with a mesh, sharded. Its feed is to be closed."""
    if not (folder / "set").exists():
        tokens = [(7 * number + number // 50) % VOCABULARY for number in range(4001)]
        write_set(folder / "set", [(tokens, None)])
    opened = Named.open(Store(folder / "set"), ReadOptions())
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
    built = BuiltModel(model, list(model.blocks), None, is_transformers=False)
    cast_inputs(built, precision, placement)
    if placement.shard_mesh is not None:
        shard_model(built, placement, precision)
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
            device=placement.device,
            objective="causal",
            masking=None,
            clock=SystemClock(),
        ),
        scale=LossScale(precision),
        guard=LossGuard(GuardConfig()),
        gradient_reducer=GradientReducer(parameters_by_unit(model)),
        copies=WeightCopies(model, precision, is_sharded=placement.shard_mesh is not None),
    )
