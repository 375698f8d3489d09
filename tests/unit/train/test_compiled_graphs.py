"""What torch.compile makes of the blocks of each family: one graph that they share, without
breaks, made in the first step and never again.

torch counts graphs before any backend compiles them, so none does here. It keeps eight graphs of
a function: if each block had one of its own, those beyond the eighth would not be compiled, without
a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from headway.plan.batch_division import MicroBatchShare
from headway.spec.load import preset_names, preset_text
from headway.spec.located_yaml import read_yaml
from headway.train.batches import Batch
from headway.train.feed import Feed
from headway.train.gradient_all_reduce import GradientReducer
from headway.train.models import BuiltModel, find_blocks
from headway.train.objectives import ChunkedTokenLoss
from headway.train.precision import LossScale, Precision
from headway.train.recomputed_blocks import recompute_blocks
from headway.train.step import Training, run_micro_batches
from headway.train.weight_copies import WeightCopies, cast_inputs
from headway.train.world import RankPlacement, World
from support.tiny_models import LENGTH, tiny_batch, tiny_model

CPU = RankPlacement(torch.device("cpu"))
BLOCKS, STEPS = 10, 20
FAMILIES = ("bert", "gpt2", "llama", "qwen3")


class TwoMicroBatches:
    num_micro_batches = 2

    def step(self, step: int, share: MicroBatchShare) -> Iterator[Batch]:
        yield from [tiny_batch()] * share.count


def compiled_training(type: str, precision: Precision, recomputed: int) -> Training:
    """What a step of micro-batches needs, with blocks in the order that a worker puts them."""
    model = tiny_model(type, num_layers=BLOCKS)
    blocks = find_blocks(model)
    cast_inputs(BuiltModel(model, blocks, None, True), precision, CPU)
    recompute_blocks(blocks[:recomputed])
    for block in blocks:
        block.compile(backend="eager")
    run = SimpleNamespace(precision=precision, data=SimpleNamespace(sequence_length=LENGTH))
    return cast(
        Training,
        SimpleNamespace(
            resolved=SimpleNamespace(run=run, micro=2),
            model=model,
            objective=ChunkedTokenLoss(),
            feed=cast(Feed, TwoMicroBatches()),
            scale=LossScale(precision),
            gradient_reducer=GradientReducer(list(model.parameters())),
            copies=WeightCopies(model, precision, is_sharded=False),
            step=0,
        ),
    )


def step(training: Training, world: World) -> None:
    with training.copies.in_use():
        sums, _, _ = run_micro_batches(training, world)
    training.gradient_reducer.finish(sums)
    for parameter in training.model.parameters():
        parameter.grad = None


@pytest.mark.long("24 cases of a few seconds each; nothing that is edited daily changes them")
@pytest.mark.parametrize("recomputed", [0, 3, BLOCKS])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("type", FAMILIES)
def test_blocks_share_one_graph_that_is_never_made_again(
    type: str, precision: Precision, recomputed: int
) -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    training = compiled_training(type, precision, recomputed)
    step(training, World(0, 1, 1, CPU))
    graphs = counters["stats"]["unique_graphs"]
    # In bf16 the first block may get fp32; those that are recomputed have graphs of their own.
    most = 1 + (precision == "bf16") + (recomputed == 3)
    assert 1 <= graphs <= most, f"{graphs} graphs of {BLOCKS} blocks"
    for _ in range(STEPS - 1):
        step(training, World(0, 1, 1, CPU))
    step(training, World(0, 2, 2, CPU))  # another worker has come, which takes a micro-batch
    assert counters["stats"]["unique_graphs"] == graphs, "recompiled"
    assert not counters["graph_break"], dict(counters["graph_break"])


def test_the_families_are_those_of_all_presets() -> None:
    types = {read_yaml(preset_text(name), name).value["model"]["type"] for name in preset_names()}
    assert types == set(FAMILIES)
