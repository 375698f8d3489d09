"""Which numbers a step computes with: the same whether a model is sharded or whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from headway.state.checkpoints import find_checkpoint
from headway.state.run_directory import RunDirectory
from headway.train.gradient_norm import squared_norm
from headway.train.precision import Precision
from headway.train.recomputed_blocks import recompute_blocks
from headway.train.step import Flags, StepResult, Training, take_step
from headway.train.weight_copies import WeightCopies
from headway.train.world import RankPlacement, World
from support.little import Little
from support.small_training import CPU, small_training

STEPS = 20


@pytest.fixture(scope="module")
def sharded() -> Iterator[World]:
    """A shard group of one rank: FSDP2 with all it does to weights and gradients."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))
    yield World(0, 1, 1, RankPlacement(torch.device("cpu"), 0, 1, mesh))
    dist.destroy_process_group()


WHOLE = World(0, 1, 1, CPU)


def steps(training: Training, world: World, count: int = STEPS) -> list[StepResult]:
    results = [take_step(training, world, Flags()) for _ in range(count)]
    training.feed.close()
    return results


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_sharding_changes_no_number(tmp_path: Path, sharded: World, precision: Precision) -> None:
    whole = steps(small_training(tmp_path, precision), WHOLE)
    divided = steps(small_training(tmp_path, precision, sharded.placement), sharded)
    for name in ("loss", "grad_norm"):
        found = [getattr(result, name) for result in divided]
        expected = [getattr(result, name) for result in whole]
        assert found == pytest.approx(expected, rel=1e-7, abs=0), name
    assert whole[-1].loss < whole[0].loss


def test_a_step_that_overflows_in_fp16_is_skipped_whole_or_sharded(
    tmp_path: Path, sharded: World
) -> None:
    results = []
    for world in (WHOLE, sharded):
        training = small_training(tmp_path, "fp16", world.placement)
        training.scale.scale = 2.0**20
        results.append(steps(training, world))
        assert training.scale.scale < 2.0**20
    whole, divided = ([result.skipped for result in one] for one in results)
    assert whole == divided
    assert whole[0] is not None, "the first gradients do not fit into fp16"
    assert whole[-10:] == [None] * 10, "the scale was lowered until they did"


def test_activations_between_layers_are_bf16_and_all_that_is_kept_is_fp32(tmp_path: Path) -> None:
    training = small_training(tmp_path, "bf16")
    before = list(training.model.named_parameters())
    steps(training, WHOLE, 2)
    model: Any = training.model
    assert set(model.blocks[1].seen) == {torch.bfloat16}
    after = list(training.model.named_parameters())
    assert all(one is other for (_, one), (_, other) in zip(before, after, strict=True))
    assert model.head.weight is model.embedding.weight
    kept = [parameter.grad for _, parameter in after]
    kept += [t for state in training.optimizer.state.values() for t in state.values()]
    assert {tensor.dtype for tensor in kept} == {torch.float32}


def test_recomputed_activations_are_those_that_were_computed(tmp_path: Path) -> None:
    plain = steps(small_training(tmp_path, "bf16"), WHOLE, 3)
    training = small_training(tmp_path, "bf16")
    model: Any = training.model
    recompute_blocks(list(model.blocks))
    assert steps(training, WHOLE, 3) == plain


def test_a_step_that_fails_leaves_the_weights_in_their_places(tmp_path: Path) -> None:
    training = small_training(tmp_path, "bf16")
    before = dict(training.model.named_parameters())

    def fails(model: Any, batch: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        take_step(replace(training, objective=fails), WHOLE, Flags())
    training.feed.close()
    assert all(p is before[name] for name, p in training.model.named_parameters())


def test_the_norm_is_the_same_however_rows_are_dealt_out() -> None:
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randn(700, 300, generator=generator)
    vector = torch.randn(999, generator=generator)
    exact = matrix.double().square().sum() + vector.double().square().sum()
    whole = float(squared_norm([matrix, vector]))
    assert whole == pytest.approx(float(exact), rel=1e-7)
    for ranks in (2, 3, 7):
        found = sum(
            float(squared_norm([part, piece]))
            for part, piece in zip(matrix.chunk(ranks), vector.chunk(ranks), strict=True)
        )
        assert found == pytest.approx(whole, rel=1e-12)


def test_a_checkpoint_knows_its_arithmetic(directory: RunDirectory) -> None:
    little = Little(directory)
    little.begin()
    little.advance(1)
    little.save()
    assert find_checkpoint(directory)[1].scalars["arithmetic"] == 2


def test_gradients_are_there_while_backward_runs() -> None:
    """They are sent as they come: with all of them at its end nothing would overlap."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    order: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    with WeightCopies(model, "bf16", is_sharded=False).in_use():
        first = model[0](torch.ones(2, 4, dtype=torch.bfloat16))
        first.register_hook(lambda _: order.append("the first layer"))
        model[2](model[1](first)).sum().backward()
    assert order.index("2.weight") < order.index("1.weight") < order.index("the first layer")


def test_batch_norm_keeps_the_precision_of_its_statistics() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with (
        WeightCopies(model, "bf16", is_sharded=False).in_use(),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        assert model[0].weight.dtype == torch.bfloat16
        model(torch.ones(2, 4)).sum().backward()
    assert model[1].weight.grad is not None
