"""The loss inside the output head, some rows at a time: the numbers of the plain loss, less memory,
and weights that are gathered as often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from headway.plan.batch_division import loss_rows
from headway.train.batches import Batch
from headway.train.models import find_blocks
from headway.train.objectives import ChunkedTokenLoss, token_loss
from headway.train.own_results import LossFunction
from headway.train.precision import Precision, computing
from headway.train.weight_copies import WeightCopies
from support.rehearsal import LiveBytes
from support.tiny_models import LENGTH, tiny_batch, tiny_model

Gradients = dict[str, torch.Tensor]


def chunked(rows: int) -> ChunkedTokenLoss:
    return ChunkedTokenLoss(rows=lambda tokens, vocabulary: rows)


def passed(
    model: nn.Module, loss: LossFunction, batch: Batch, precision: Precision = "fp32"
) -> tuple[float, Gradients]:
    """Loss and gradients of one micro-batch, seeded as in a step."""
    parameters = dict(model.named_parameters())
    copies = WeightCopies(model, precision, is_sharded=False)
    torch.manual_seed(batch.seed)
    with copies.in_use(), computing(precision, torch.device("cpu")):
        found = loss(model, batch)
        found.sum.backward()
    assert found.count == 29
    gradients = {name: local(one.grad) for name, one in parameters.items() if one.grad is not None}
    model.zero_grad()
    return found.sum.item(), gradients


def local(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return found.clone()


def require_same(one: Gradients, other: Gradients, rel: float) -> None:
    assert one.keys() == other.keys()
    # Some are zero but for rounding: of a bias of keys, for one.
    least = 1e-3 * max(gradient.norm() for gradient in other.values())
    for name, gradient in one.items():
        error = (gradient - other[name]).norm() / other[name].norm().clamp_min(least)
        assert error <= rel, f"{name}: {error:.2g}"


# llama's head is a table of its own, gpt2's and qwen3's are tied, bert's has a bias.
@pytest.mark.parametrize("type", ["gpt2", "bert", "llama", "qwen3"])
@pytest.mark.parametrize("rows", [32, 12])
def test_loss_and_gradients_are_those_of_the_plain_loss(type: str, rows: int) -> None:
    model, batch = tiny_model(type), tiny_batch()
    expected, plain = passed(model, token_loss, batch)
    found, gradients = passed(model, chunked(rows), batch)
    assert found == pytest.approx(expected, rel=1e-6)
    require_same(gradients, plain, rel=1e-6)
    with torch.no_grad():
        assert chunked(rows)(model.eval(), batch).sum == pytest.approx(
            token_loss(model, batch).sum.item(), rel=1e-6
        )


def test_many_chunks_are_added_up_in_fp32() -> None:
    """In bf16 the sum of 32 chunks would be off by more than the plain loss in bf16."""
    batch, model = tiny_batch(), tiny_model("llama")
    _, exact = passed(model, token_loss, batch)
    _, plain = passed(model, token_loss, batch, "bf16")
    _, found = passed(model, chunked(1), batch, "bf16")
    head = "lm_head.weight"

    def error(gradients: Gradients) -> float:
        return float((gradients[head] - exact[head]).norm() / exact[head].norm())

    assert error(found) < 1.1 * error(plain)


class Capped(nn.Module):
    """Does something with what its head returns."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_model("gpt2")

    def get_output_embeddings(self) -> Any:
        return self.inner.get_output_embeddings()  # type: ignore[operator]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(inputs).logits / 30.0) * 30.0


def test_a_head_with_more_than_a_product_has_the_plain_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, batch, loss = Capped(), tiny_batch(), chunked(12)
    expected, plain = passed(model, token_loss, batch)
    for _ in range(2):
        found, gradients = passed(model, loss, batch)
        assert found == expected, "the dropout of a pass in vain is drawn again"
        require_same(gradients, plain, rel=0)
    assert caplog.text.count("whole micro-batch") == 1


def test_outside_of_the_loss_the_model_returns_logits() -> None:
    model, batch = tiny_model("gpt2"), tiny_batch()
    chunked(12)(model, batch)
    assert model(batch.inputs).logits.shape == (*batch.inputs.shape, 96)


class Collectives(TorchDispatchMode):
    """Counts the operators of c10d, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=["gloo", "fake"])
def mesh(request: pytest.FixtureRequest) -> Iterator[DeviceMesh]:
    """Of one rank, which computes; of two that are not there, whose collectives are counted."""
    if request.param == "gloo":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (dist.get_world_size(),))
    dist.destroy_process_group()


@pytest.mark.parametrize("has_group", [False, True])
def test_a_sharded_head_is_gathered_as_often_as_for_the_plain_loss(
    mesh: DeviceMesh, has_group: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the head is gathered with the rest of the model or in a group of its own."""

    def counted(loss: LossFunction) -> tuple[Counter[str], Gradients]:
        model: Any = tiny_model("llama")
        for block in find_blocks(model):
            fully_shard(block, mesh=mesh)
        if has_group:
            fully_shard([model.model.norm, model.lm_head], mesh=mesh)
        fully_shard(model, mesh=mesh)
        with Collectives() as seen:
            _, gradients = passed(model, loss, tiny_batch())
        return seen.counts, gradients

    (expected, plain), (found, gradients) = counted(token_loss), counted(chunked(4))
    assert caplog.text == "", "it is a linear head for FSDP2, too"
    if mesh.size() == 1:
        require_same(gradients, plain, rel=1e-6)
    else:
        assert found == expected
        assert sum(expected.values()) >= 6, "three units, each gathered and reduced at least once"


def test_the_peak_is_at_most_half_of_the_plain_losss_at_a_vocabulary_of_128k() -> None:
    """Bytes of all tensors in a pass of 4,096 tokens."""

    def peak(loss: LossFunction) -> int:
        with FakeTensorMode(), LiveBytes() as live:
            model = tiny_model("llama", vocab_size=131_072, hidden_size=256)
            loss(model, tiny_batch(rows=4096 // LENGTH)).sum.backward()
        return live.peak

    plain = peak(token_loss)
    assert plain > 3 * 4 * 4096 * 131_072
    assert peak(ChunkedTokenLoss()) < plain / 2


def test_chunks_are_equal_and_not_small() -> None:
    assert loss_rows(8192, 131_072) == 1024
    assert loss_rows(3000, 131_072) == 1000
    assert loss_rows(8192, 50_304) == 2048
    assert loss_rows(8192, 8192) == 8192, "a small vocabulary needs one"
    assert loss_rows(512, 262_144) == 512
