"""What the user's loss and metrics return, checked at every call, so that a mistake has a clear
message and nothing wrong is recorded silently."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from headway.errors import BadInput
from headway.state.own_function import LOSS, METRICS, own_function
from headway.train.batches import Batch, Loss

LossFunction = Callable[[nn.Module, Batch], Loss]
Pair = tuple[torch.Tensor, torch.Tensor]
MetricsFunction = Callable[[nn.Module, Batch], dict[str, Pair]]

RECORDED = frozenset(
    {
        *("step", "set", "time", "tokens", "targets", "generation", "rewind", "skipped"),
        *("loss", "perplexity", "lr", "grad_norm"),
        *("seconds", "data_seconds", "unprepared_seconds", "tokens_per_second", "mfu"),
    }
)
"""Names in metrics.jsonl and evaluations.jsonl that mean something else."""


def own_loss(call: str) -> LossFunction:
    function, names = own_function(call, *LOSS), SameNames(f"{call}: extras")

    def checked(model: nn.Module, batch: Batch) -> Loss:
        loss = function(model, batch)
        if not isinstance(loss, Loss):
            raise BadInput(
                f"{call} returned {type(loss).__name__}", "return headway.Loss(sum, count)"
            )
        if not isinstance(loss.sum, torch.Tensor):
            raise BadInput(
                f"{call}: sum is {type(loss.sum).__name__}, which has no gradient",
                "return the tensor itself, without .item() or float()",
            )
        count = torch.as_tensor(loss.count, device=loss.sum.device)
        if loss.sum.ndim != 0 or count.ndim != 0 or count.is_floating_point():
            raise BadInput(
                f"{call}: sum must be a scalar and count an integer scalar (found shapes "
                f"{tuple(loss.sum.shape)} and {tuple(count.shape)}, count {count.dtype})",
                "return sums, not means: Headway divides once by the count of the whole batch",
            )
        names.require(loss.extras)
        extras = {
            name: _scalar(value, f"{call}: extra {name!r}", loss.sum.device)
            for name, value in loss.extras.items()
        }
        return Loss(loss.sum, count, extras)

    return checked


def own_metrics(call: str) -> MetricsFunction:
    function, names = own_function(call, *METRICS), SameNames(f"{call}: metrics")

    def checked(model: nn.Module, batch: Batch) -> dict[str, Pair]:
        measured = function(model, batch)
        if not isinstance(measured, dict):
            raise BadInput(f"{call} returned {type(measured).__name__}", PAIRS)
        names.require(measured)
        device = batch.inputs.device
        return {name: _pair(call, name, value, device) for name, value in measured.items()}

    return checked


PAIRS = "return {name: (sum, count)}: Headway sums both over all workers and divides once"


class SameNames:
    """Numbers of all micro-batches and workers are summed by position: so their names must be the
    same in every call."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._names: list[str] | None = None

    def require(self, names: Iterable[Any]) -> None:
        found = list(names)
        for name in found:
            if not isinstance(name, str) or name in RECORDED:
                raise BadInput(
                    f"{self._what} cannot have the name {name!r}",
                    f"rename it; Headway records {', '.join(sorted(RECORDED))} itself",
                )
        before, self._names = self._names, sorted(found)
        if before is not None and before != self._names:
            raise BadInput(
                f"{self._what} are {_list(self._names)} in one micro-batch and {_list(before)} in "
                "another",
                "return the same names every time, with 0 where there is nothing to sum",
            )


def _pair(call: str, name: str, value: Any, device: torch.device) -> Pair:
    if not (isinstance(value, tuple | list) and len(value) == 2):
        raise BadInput(f"{call}: metric {name!r} is {type(value).__name__}", PAIRS)
    total, count = (_scalar(one, f"{call}: metric {name!r}", device) for one in value)
    return total, count


def _scalar(value: Any, what: str, device: torch.device) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        if value.ndim != 0:
            raise BadInput(f"{what} has the shape {tuple(value.shape)}", "sum it: x.sum()")
        return value.detach().to(device)
    try:
        # Filled there: a copy from the host would be a sync for every micro-batch.
        return torch.full((), float(value), dtype=torch.float64, device=device)
    except (TypeError, ValueError):
        raise BadInput(
            f"{what} is {type(value).__name__}, not a number", "return a tensor or a number"
        ) from None


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"
