"""`check --code` finds a loss that would depend on the number of workers."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headway.errors import BadInput
from headway.train.batches import IGNORED, Batch, Loss
from headway.train.loss_rules import StillBuffers, require_rules

VOCABULARY = 11
TOKENS = torch.arange(10).view(2, 5)
BATCH = Batch(TOKENS, TOKENS.roll(-1, 1), torch.ones(2, dtype=torch.bool), seed=1)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(VOCABULARY, 6)
        self.head = nn.Linear(6, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(F.dropout(self.embed(tokens), 0.1, self.training))


def parts(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, text loss and count."""
    logits, targets = model(batch.inputs), batch.targets
    text = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return logits, text, (targets != IGNORED).sum()


def balanced(model: nn.Module, batch: Batch) -> Loss:
    """An auxiliary term that is a mean, weighted by the count."""
    logits, text, count = parts(model, batch)
    counted = (batch.targets != IGNORED).unsqueeze(-1)
    share = (logits.softmax(-1) * counted).sum((0, 1)) / count.clamp(min=1)
    term = share.square().sum() * count
    return Loss(text + 0.1 * term, count, {"balance": term})


def a_mean(model: nn.Module, batch: Batch) -> Loss:
    logits, text, count = parts(model, batch)
    counted = (batch.targets != IGNORED).unsqueeze(-1)
    term = (logits.square() * counted).sum() / count.clamp(min=1)
    return Loss(text + term, count, {"size": term})


def of_padding(model: nn.Module, batch: Batch) -> Loss:
    logits, text, count = parts(model, batch)
    return Loss(text + 0.1 * logits.square().sum() * (count > 0), count)


def divides_by_zero(model: nn.Module, batch: Batch) -> Loss:
    logits, text, count = parts(model, batch)
    counted = (batch.targets != IGNORED).unsqueeze(-1)
    return Loss(text + (logits * counted).sum() / count * count, count)


def of_weights(model: nn.Module, batch: Batch) -> Loss:
    _, text, count = parts(model, batch)
    return Loss(text + model.head.weight.square().sum(), count)


def at_random(model: nn.Module, batch: Batch) -> Loss:
    _, text, count = parts(model, batch)
    return Loss(text * random.random(), count)


def infinite_gradient(model: nn.Module, batch: Batch) -> Loss:
    logits, text, count = parts(model, batch)
    counted = (batch.targets != IGNORED).unsqueeze(-1)
    return Loss(text + (logits.square() * counted).sum().sqrt(), count)


def not_a_number(model: nn.Module, batch: Batch) -> Loss:
    _, text, count = parts(model, batch)
    return Loss(text * math.nan, count)


def masks_by_itself(model: nn.Module, batch: Batch) -> Loss:
    hidden = torch.rand(batch.inputs.shape) < 0.5
    targets = batch.targets.masked_fill(~hidden, IGNORED)
    _, text, count = parts(model, Batch(batch.inputs, targets, batch.is_real, batch.seed))
    return Loss(text, count)


def test_a_weighted_term_keeps_the_rules() -> None:
    assert require_rules(balanced, Small(), BATCH, "mine:loss") is None


def test_randomness_of_torch_does_too() -> None:
    assert require_rules(masks_by_itself, Small(), BATCH, "mine:loss") is None


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (at_random, "for the same batch and the same batch.seed"),
        (of_padding, "with two rows of padding more"),
        (divides_by_zero, "sum is nan for a micro-batch of padding only"),
        (of_weights, "for a micro-batch of padding only, not 0"),
        (not_a_number, "sum is NaN for a batch of the prepared set"),
        (infinite_gradient, "the gradient of embed.weight is not finite for a micro-batch of"),
    ],
)
def test_one_that_breaks_a_rule_is_refused(loss, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        require_rules(loss, Small(), BATCH, "mine:loss")
    assert says in str(caught.value)


def test_a_term_that_looks_like_a_mean_is_remarked_on() -> None:
    """Not refused: a loss may compare the rows of a micro-batch with each other."""

    def forgives_padding(model: nn.Module, batch: Batch) -> Loss:
        loss = a_mean(model, batch)
        return (
            loss if batch.is_real.any() else Loss(loss.sum * 0, loss.count, {"size": loss.sum * 0})
        )

    assert require_rules(forgives_padding, Small(), BATCH, "mine:loss") == (
        "with every row twice, extra 'size' of mine:loss is 1 times as large, not 2: "
        "if it is a mean, multiply it by the count"
    )


def test_a_buffer_that_changes_in_forward_is_named() -> None:
    class Counting(Small):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6)
            self.register_buffer("cache", torch.zeros(1), persistent=False)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            self.cache += 1  # computed again anywhere: no state
            return self.head(self.norm(self.embed(tokens).transpose(1, 2)).transpose(1, 2))

    objective = StillBuffers(balanced, "mine:build")
    with pytest.raises(BadInput, match=r"mine:build: the buffer norm.running_mean changes"):
        objective(Counting(), BATCH)
    still = StillBuffers(balanced, "mine:build")
    assert int(still(Small(), BATCH).count) == int(still(Small(), BATCH).count) == 10
