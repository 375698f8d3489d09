"""What a step does besides computing: as little as possible, and none of it changes a number."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headway.clock import SystemClock
from headway.data.reading.tokenset import Reading, Rows, TokenSet
from headway.spec.run import Guard, RunFile
from headway.train.batches import Batch
from headway.train.feed import Feed
from headway.train.guard import LossGuard
from headway.train.objectives import token_loss
from headway.train.precision import LossScale
from headway.train.replicate import Gradients
from headway.train.step import Flags, Training, take_step
from headway.train.world import Place, World
from support.token_sets import write_set

LENGTH, BATCH, MICRO, VOCABULARY = 8, 4, 2, 90
CPU = torch.device("cpu")
WORLD = World(0, 1, 1, Place(CPU))


class Named(TokenSet):
    """Notes which thread reads."""

    readers: list[str]

    def read(self, samples: np.ndarray, sequence_length: int) -> Rows:
        self.readers.append(threading.current_thread().name)
        return super().read(samples, sequence_length)


class Network(nn.Module):
    """With dropout, so that a step shows which random numbers it drew."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.embedding(inputs)))


def network() -> Network:
    torch.manual_seed(1)
    return Network()


@pytest.fixture
def training(tmp_path: Path) -> Any:
    tokens = [(7 * number) % VOCABULARY for number in range(2001)]
    write_set(tmp_path / "set", [(tokens, None)])
    opened = Named.open(tmp_path / "set", Reading())
    assert isinstance(opened, Named)
    opened.readers = []
    run = RunFile(version=1, seed=3, precision="fp32", data={"sequence_length": LENGTH})
    model = network()
    feed = Feed(
        opened,
        sequence_length=LENGTH,
        global_batch=BATCH,
        micro=MICRO,
        seed=3,
        device=CPU,
        objective="causal",
        masking=None,
        clock=SystemClock(),
    )
    made = Training(
        resolved=SimpleNamespace(run=run, micro=MICRO),  # type: ignore[arg-type]
        total_steps=100,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        objective=token_loss,
        feed=feed,
        scale=LossScale("fp32"),
        guard=LossGuard(Guard()),
        gradients=Gradients(list(model.parameters())),
    )
    yield made
    feed.close()


def test_a_step_seeds_no_generator_but_the_one_in_use(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.manual_seed seeds those of every kind of device, which takes longer than a small
    model's whole forward pass."""
    wide: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", wide.append)
    take_step(training, WORLD, Flags())
    assert wide == []


def test_the_numbers_are_those_of_a_generator_seeded_for_each_micro_batch(
    training: Training,
) -> None:
    batches = list(training.feed.step(0, WORLD.share(2)))
    assert take_step(training, WORLD, Flags()).loss == _by_hand(network(), batches)


def _by_hand(model: nn.Module, batches: list[Batch]) -> float:
    model.train()
    total, count = 0.0, 0
    for batch in batches:
        torch.manual_seed(batch.seed)
        loss = token_loss(model, batch)
        total, count = total + loss.sum.item(), count + int(loss.count)
    return total / count


def test_batches_are_read_ahead_off_the_main_thread(training: Training) -> None:
    for _ in range(4):
        take_step(training, WORLD, Flags())
    readers = training.feed.set.readers  # type: ignore[union-attr]
    assert readers[1:4] == ["ahead"] * 3, "however small they are"


def test_a_module_left_in_evaluation_mode_is_trained_again(training: Training) -> None:
    training.model.eval()
    batches = list(training.feed.step(0, WORLD.share(2)))
    assert take_step(training, WORLD, Flags()).loss == _by_hand(network(), batches)
