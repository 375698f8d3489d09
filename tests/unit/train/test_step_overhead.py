"""What a step does besides computing: as little as possible, and none of it changes a number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from headway.train.batches import Batch
from headway.train.objectives import token_loss
from headway.train.step import Flags, Training, take_step
from headway.train.world import World
from support.small_training import CPU, Network, small_training

WORLD = World(0, 1, 1, CPU)


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    made = small_training(tmp_path)
    yield made
    made.feed.close()


def test_a_step_seeds_no_generator_but_the_one_in_use(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.manual_seed seeds those of every kind of device, which takes longer than a small
    model's whole forward pass."""
    wide: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", wide.append)
    take_step(training, WORLD, Flags())
    assert wide == []


@pytest.mark.parametrize("after_an_evaluation", [False, True])
def test_the_numbers_are_those_of_a_generator_seeded_for_each_micro_batch(
    training: Training, after_an_evaluation: bool
) -> None:
    batches = list(training.feed.step(0, WORLD.share(2)))
    if after_an_evaluation:
        training.model.eval()
    assert take_step(training, WORLD, Flags()).loss == _by_hand(Network(), batches)


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
    assert readers[1:4] == ["prefetch"] * 3, "however small they are"
