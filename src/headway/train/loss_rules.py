"""The rules that a loss of the user's own has to keep, tried on a tiny batch: those without which
losses depend on the number of workers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from headway.errors import BadInput
from headway.train.batches import IGNORED, Batch, Loss
from headway.train.device import seed_generators
from headway.train.own_results import LossFunction

TOLERANCE = 1e-4
"""Larger than what the order of a sum in fp32 changes."""


def require_rules(objective: LossFunction, model: nn.Module, batch: Batch, call: str) -> str | None:
    """Raises if the loss breaks one. A remark, if it may be wrong: some losses are made so."""
    once, again = (_figures(objective, model, batch, seed=1) for _ in range(2))
    for name, value in once.items():
        if math.isnan(value):
            raise BadInput(
                f"{call}: {name} is NaN for a batch of the prepared set",
                "divide by count.clamp(min=1), and take no logarithm or root of zero",
            )
    for name, value in once.items():
        if not _is_close(value, again[name]):
            raise BadInput(
                f"{call}: {name} is {value:.6g} and then {again[name]:.6g} for the same batch and "
                "the same batch.seed",
                "randomness of torch is seeded for each micro-batch; Python's `random`, NumPy, "
                "counters and the time are not",
            )
    _require_nothing_of_padding(objective, model, batch, call)
    with _evaluating(model):
        whole, other = (_figures(objective, model, batch, seed) for seed in (1, 2))
        if whole != other:
            return None  # random without dropout: other shapes draw other numbers
        padded = _figures(objective, model, _with(batch, _padding(batch)), seed=1)
        for name, value in whole.items():
            if not _is_close(value, padded[name]):
                raise BadInput(
                    f"{call}: {name} is {value:.6g}, and {padded[name]:.6g} with two rows of "
                    "padding more",
                    "leave out what has batch.targets == IGNORED: padding counts for nothing",
                )
        return _not_sums(whole, _figures(objective, model, _with(batch, batch), seed=1), call)


def _require_nothing_of_padding(
    objective: LossFunction, model: nn.Module, batch: Batch, call: str
) -> None:
    """A worker may have no other micro-batch."""
    model.zero_grad()
    loss = objective(model, _padding(batch))
    for name, value in _as_numbers(loss).items():
        if value != 0:
            raise BadInput(
                f"{call}: {name} is {value:.6g} for a micro-batch of padding only, not 0",
                "multiply each term that is a mean by the count, and divide by count.clamp(min=1)",
            )
    if loss.sum.requires_grad:
        loss.sum.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            raise BadInput(
                f"{call}: the gradient of {name} is not finite for a micro-batch of padding only",
                "divide by count.clamp(min=1): the count may be zero",
            )


def _not_sums(once: dict[str, float], twice: dict[str, float], call: str) -> str | None:
    """Terms that are not twice as large for every row twice: perhaps means."""
    for name, value in sorted(once.items(), key=lambda item: item[0] == "sum"):
        if name != "count" and value and not _is_close(2 * value, twice[name]):
            return (
                f"with every row twice, {name} of {call} is {twice[name] / value:.3g} times as "
                "large, not 2: if it is a mean, multiply it by the count"
            )
    return None


def _figures(
    objective: LossFunction, model: nn.Module, batch: Batch, seed: int
) -> dict[str, float]:
    seed_generators(seed, batch.inputs.device)
    with torch.no_grad():
        return _as_numbers(objective(model, batch))


def _as_numbers(loss: Loss) -> dict[str, float]:
    extras = {f"extra {name!r}": float(value.detach()) for name, value in loss.extras.items()}
    return {"sum": float(loss.sum.detach()), "count": float(loss.count), **extras}


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=1e-9)


def _padding(batch: Batch) -> Batch:
    return replace(
        batch,
        inputs=torch.zeros_like(batch.inputs),
        targets=torch.full_like(batch.targets, IGNORED),
        is_real=torch.zeros_like(batch.is_real),
    )


def _with(batch: Batch, other: Batch) -> Batch:
    return replace(
        batch,
        inputs=torch.cat([batch.inputs, other.inputs]),
        targets=torch.cat([batch.targets, other.targets]),
        is_real=torch.cat([batch.is_real, other.is_real]),
    )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)


class StillBuffers:
    """An objective for a model of the user's own: raises if the first forward pass changes a
    buffer, as BatchNorm does. Each worker would have its own values, of its own micro-batches, and
    a step that is computed again would change them twice."""

    def __init__(self, objective: LossFunction, call: str) -> None:
        self._objective = objective
        self._call = call
        self._is_known = False

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        if self._is_known:
            return self._objective(model, batch)
        saved = set(model.state_dict())
        before = {n: b.clone() for n, b in model.named_buffers() if n in saved}
        loss = self._objective(model, batch)
        now = dict(model.named_buffers())
        for name, value in before.items():
            if name not in now or not torch.equal(value, now[name]):  # SYNC, once
                raise BadInput(
                    f"{self._call}: the buffer {name} changes in forward, on each worker in "
                    "another way: losses would depend on the number of workers",
                    "use a layer without running statistics, such as LayerNorm for BatchNorm",
                )
        self._is_known = True
        return loss
