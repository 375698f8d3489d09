"""Optimizers against their definitions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headway.spec.run_file import OptimizerConfig
from headway.train.optim import Lamb, make_moments, make_optimizer, set_lr


def test_only_matrices_are_decayed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    optimizer = make_optimizer(OptimizerConfig(weight_decay=0.1), model)
    decayed = {id(p) for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    assert decayed == {id(model[0].weight)}


@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_frozen_weights_are_left_alone(kind: str) -> None:
    model = nn.Linear(4, 4)
    model.bias.requires_grad_(False)
    optimizer = make_optimizer(OptimizerConfig(type=kind), model)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 1


@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_moments_made_beforehand_are_those_of_the_first_step(kind: str) -> None:
    torch.manual_seed(1)
    models = [nn.Linear(4, 4), nn.Linear(4, 4)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [make_optimizer(OptimizerConfig(type=kind), model) for model in models]
    make_moments(optimizers[1])
    for model, optimizer in zip(models, optimizers, strict=True):
        for _ in range(2):
            for parameter in model.parameters():
                parameter.grad = parameter.detach() + 1
            optimizer.step()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)
        states = [optimizers[0].state[one], optimizers[1].state[other]]
        assert list(states[0]) == list(states[1])
        for key, value in states[0].items():
            assert value.dtype == states[1][key].dtype
            assert torch.equal(value, states[1][key])


def lamb_by_hand(
    weight: torch.Tensor, gradients: list[torch.Tensor], lr: float, decay: float
) -> torch.Tensor:
    """Algorithm 2 of the LAMB paper, in float64, one line a line."""
    weight = weight.double()
    m = torch.zeros_like(weight)
    v = torch.zeros_like(weight)
    for t, gradient in enumerate(gradients, start=1):
        g = gradient.double()
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        r = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-6)
        update = r + decay * weight
        trust = weight.norm() / update.norm() if decay else 1.0
        weight = weight - lr * trust * update
    return weight


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_lamb_is_the_papers(decay: float) -> None:
    torch.manual_seed(1)
    weight = nn.Parameter(torch.randn(5, 7))
    expected_from = weight.detach().clone()
    gradients = [torch.randn(5, 7) for _ in range(6)]
    optimizer = Lamb([{"params": [weight], "weight_decay": decay}], lr=0.01)
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
    expected = lamb_by_hand(expected_from, gradients, 0.01, decay)
    torch.testing.assert_close(weight.detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_lamb_moves_weights_that_are_all_zero() -> None:
    weight = nn.Parameter(torch.zeros(3, 3))
    optimizer = Lamb([{"params": [weight], "weight_decay": 0.1}], lr=0.01)
    weight.grad = torch.ones(3, 3)
    optimizer.step()
    assert torch.isfinite(weight).all()
    assert (weight != 0).all()


def test_the_learning_rate_is_set_on_every_group() -> None:
    optimizer = make_optimizer(OptimizerConfig(), nn.Sequential(nn.Linear(2, 2)))
    set_lr(optimizer, 0.123)
    assert {group["lr"] for group in optimizer.param_groups} == {0.123}
