"""Optimizers: torch's AdamW, and LAMB for very large batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from headway.spec.run_file import OptimizerConfig


def make_optimizer(spec: OptimizerConfig, module: nn.Module) -> torch.optim.Optimizer:
    """Decay acts on matrices only: pulling norms and biases to zero hurts and saves nothing."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": spec.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if spec.type == "lamb":
        return Lamb(groups, lr=spec.lr, betas=spec.betas, eps=spec.eps)
    return torch.optim.AdamW(groups, lr=spec.lr, betas=spec.betas, eps=spec.eps, fused=True)


def counter_device(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> torch.device:
    """Where the optimizer has a parameter's `step`: fused kernels want it on the device; LAMB reads
    it on the host, which would be a sync there."""
    return parameter.device if optimizer.defaults.get("fused") else torch.device("cpu")


@torch.no_grad()
def make_moments(optimizer: torch.optim.Optimizer) -> None:
    """What the first step would make, in memory that was written to: fresh memory costs more to
    touch than to copy into. Parameters without gradients get some, too."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), device=counter_device(optimizer, parameter)),
                "exp_avg": torch.empty_like(parameter, requires_grad=False).zero_(),
                "exp_avg_sq": torch.empty_like(parameter, requires_grad=False).zero_(),
            }


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


class Lamb(torch.optim.Optimizer):
    """Adam's direction, scaled for each tensor to its weights' norm (You et al. 2020, algorithm 2).

    The trust ratio is 1 for tensors without decay (biases, norms) and where a norm is zero. Works
    on sharded tensors: norms are over the whole tensor.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "a step is computed before it is applied"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(parameter.grad, 1 - beta1)
        square.mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
        done = state["step"].item()
        corrected_mean = mean / (1 - beta1**done)
        corrected_square = square / (1 - beta2**done)
        update = corrected_mean / (corrected_square.sqrt() + group["eps"])
        ratio: torch.Tensor | float = 1.0
        if group["weight_decay"]:
            update.add_(parameter, alpha=group["weight_decay"])
            weight_norm, update_norm = _whole_norm(parameter), _whole_norm(update)
            both = (weight_norm > 0) & (update_norm > 0)
            ratio = torch.where(both, weight_norm / update_norm, 1.0)
        parameter.sub_(update * (ratio * group["lr"]))


def _whole_norm(tensor: torch.Tensor) -> torch.Tensor:
    """The norm over all shards. COLLECTIVE when the tensor is sharded."""
    norm = torch.linalg.vector_norm(tensor)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
