"""Losses are sums over targets: any cut of a batch adds up to the whole."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headway.spec.run_file import ModelConfig, ObjectiveConfig
from headway.train.batches import IGNORED, Batch
from headway.train.objectives import Distill, token_loss

VOCABULARY = 11


class Output:
    def __init__(self, logits: torch.Tensor, hidden: torch.Tensor) -> None:
        self.logits = logits
        self.hidden_states = (hidden,)


class Small(nn.Module):
    def __init__(self, seed: int, width: int = 6) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCABULARY, width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor, output_hidden_states: bool = False) -> Output:
        hidden = self.embed(tokens)
        return Output(self.head(hidden), hidden)


def batch(rows: int = 4, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (rows, 5), generator=generator)
    targets = torch.randint(0, VOCABULARY, (rows, 5), generator=generator)
    targets[0, 1] = IGNORED
    return Batch(tokens, targets, torch.ones(rows, dtype=torch.bool), seed=1)


def rows_of(whole: Batch, rows: slice) -> Batch:
    return Batch(whole.inputs[rows], whole.targets[rows], whole.is_real[rows], whole.seed)


def objectives() -> dict[str, object]:
    spec = ObjectiveConfig(
        type="distill", teacher=ModelConfig.model_validate({"from": "x"}), temperature=3.0
    )
    return {"tokens": token_loss, "distill": Distill(spec, Small(2))}


@pytest.mark.trap(34)
@pytest.mark.parametrize("name", ["tokens", "distill"])
def test_micro_batches_add_up_to_the_batch(name: str) -> None:
    objective = objectives()[name]
    model, whole = Small(1), batch()
    all_at_once = objective(model, whole)
    parts = [objective(model, rows_of(whole, slice(i, i + 1))) for i in range(4)]
    torch.testing.assert_close(sum(part.sum for part in parts), all_at_once.sum)
    assert sum(int(part.count) for part in parts) == int(all_at_once.count) == 19
    for extra, value in all_at_once.extras.items():
        torch.testing.assert_close(sum(part.extras[extra] for part in parts), value)


@pytest.mark.parametrize("name", ["tokens", "distill"])
def test_padding_counts_for_nothing(name: str) -> None:
    padding = Batch(
        torch.zeros(2, 5, dtype=torch.int64),
        torch.full((2, 5), IGNORED),
        torch.zeros(2, dtype=torch.bool),
        seed=1,
    )
    model = Small(1)
    loss = objectives()[name](model, padding)
    loss.sum.backward()
    assert float(loss.sum.detach()) == 0.0
    assert int(loss.count) == 0
    assert all(p.grad is None or (p.grad == 0).all() for p in model.parameters())


def test_distillation_is_what_its_definition_says() -> None:
    whole, student, teacher = batch(), Small(1), Small(2)
    spec = ObjectiveConfig(
        type="distill", teacher=ModelConfig.model_validate({"from": "x"}), temperature=2.0
    )
    found = Distill(spec, teacher)(student, whole)
    counted = whole.targets != IGNORED
    own, taught = student(whole.inputs), teacher(whole.inputs)
    soft = F.kl_div(
        (own.logits / 2).log_softmax(-1)[counted],
        (taught.logits / 2).softmax(-1)[counted],
        reduction="sum",
    )
    hard = F.cross_entropy(own.logits[counted], whole.targets[counted], reduction="sum")
    cosine = F.cosine_similarity(own.hidden_states[0], taught.hidden_states[0], dim=-1)[counted]
    torch.testing.assert_close(found.sum, 5 * 4 * soft + 2 * hard + (1 - cosine).sum())


def test_a_student_of_itself_has_no_soft_loss_and_the_teacher_is_not_trained() -> None:
    model, teacher = Small(1), Small(1)
    spec = ObjectiveConfig(type="distill", teacher=ModelConfig.model_validate({"from": "x"}))
    found = Distill(spec, teacher)(model, batch())
    assert float(found.extras["loss_soft"]) == pytest.approx(0.0, abs=1e-4)
    found.sum.backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
