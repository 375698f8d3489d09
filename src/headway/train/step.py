"""One step: compute the slices, add up, decide, apply.

The world is an argument: nothing here remembers who took part in the step before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import nn

from headway.spec.resolve import Resolved
from headway.train.feed import Feed
from headway.train.guard import LossGuard
from headway.train.objectives import LossFunction
from headway.train.optim import set_lr
from headway.train.precision import LossScale, computing
from headway.train.replicate import add_up_gradients
from headway.train.schedule import lr_ratio
from headway.train.world import World


@dataclass
class Training:
    """Everything a step changes, and what it needs to do so."""

    resolved: Resolved
    total_steps: int
    model: nn.Module
    optimizer: torch.optim.Optimizer
    objective: LossFunction
    feed: Feed
    scale: LossScale
    guard: LossGuard
    step: int = 0
    """Steps committed so far: the next one to compute."""


@dataclass(frozen=True)
class Flags:
    """What a worker brings to a step; if any worker raises a flag, all see it raised."""

    stop: bool = False
    """Stop after this step."""
    save: bool = False
    """Save after this step."""


@dataclass(frozen=True)
class StepResult:
    step: int
    """Number of the step, from 1."""
    loss: float
    count: int
    """Targets of the whole global batch."""
    grad_norm: float
    lr: float
    extras: dict[str, float] = field(default_factory=dict)
    skipped: str | None = None
    """Why nothing was learned from this step; it is consumed all the same."""
    flags: Flags = Flags()
    """Raised by any worker."""


def take_step(training: Training, world: World, flags: Flags) -> StepResult:
    """COLLECTIVE. Computes and commits step `training.step`; the same result on every worker."""
    run, step = training.resolved.run, training.step
    training.optimizer.zero_grad(set_to_none=True)
    sums, counts, names = _run_slices(training, world, flags)

    parameters = [p for p in training.model.parameters() if p.requires_grad]
    add_up_gradients(parameters, world)  # COLLECTIVE
    world.add_up(sums, counts)  # COLLECTIVE
    gradients = [p.grad for p in parameters if p.grad is not None]
    summed_norm = _global_norm(gradients)
    # SYNC: the one moment of a step at which the host waits for the device.
    count, stop, save = counts.tolist()
    loss, *extras = (value / max(1, count) for value in sums.tolist())
    divisor = count * training.scale.factor(_slice_tokens(training))
    grad_norm = float(summed_norm) / divisor if count else 0.0

    reason = training.guard.verdict(loss, grad_norm) if count else "it has no targets"
    lr = run.optimizer.lr * lr_ratio(run.schedule, step, training.total_steps)
    if reason is None:
        _apply(training, gradients, grad_norm, divisor, lr)
    training.scale.update(finite=math.isfinite(grad_norm))
    training.guard.record(loss, reason)
    training.step = step + 1
    return StepResult(
        step=step + 1,
        loss=loss,
        count=count,
        grad_norm=grad_norm,
        lr=lr,
        extras=dict(zip(names, extras, strict=True)),
        skipped=reason,
        flags=Flags(stop=stop > 0, save=save > 0),
    )


def _run_slices(
    training: Training, world: World, flags: Flags
) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Forward and backward over this worker's slices. Sums and counts stay on the device."""
    run = training.resolved.run
    factor = training.scale.factor(_slice_tokens(training))
    training.model.train()
    share = world.share(training.feed.num_slices)
    sums: torch.Tensor | None = None
    count = torch.zeros((), dtype=torch.int64, device=world.device)
    names: list[str] = []
    for batch in training.feed.step(training.step, share):
        torch.manual_seed(batch.seed)
        with computing(run.precision, world.device):
            loss = training.objective(training.model, batch)
        (loss.sum * factor if factor != 1.0 else loss.sum).backward()
        names = sorted(loss.extras)
        parts = torch.stack([loss.sum.detach(), *(loss.extras[name].detach() for name in names)])
        sums = parts.double() if sums is None else sums + parts.double()
        count = count + loss.count
    assert sums is not None, "a share has at least one slice"
    raised = torch.tensor([flags.stop, flags.save], dtype=torch.int64, device=world.device)
    return sums, torch.cat([count.view(1), raised]), names


def _slice_tokens(training: Training) -> int:
    return training.resolved.micro * training.resolved.run.data.sequence_length


def _global_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Over all gradients and all shards of them. COLLECTIVE when the model is sharded."""
    norm = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


@torch.no_grad()
def _apply(
    training: Training, gradients: list[torch.Tensor], grad_norm: float, divisor: float, lr: float
) -> None:
    """Sums become means and are clipped in one pass over the gradients, then the update."""
    limit = training.resolved.run.optimizer.max_grad_norm
    clip = 1.0 if limit == "off" else min(1.0, limit / (grad_norm + 1e-6))
    torch._foreach_mul_(gradients, clip / divisor)
    set_lr(training.optimizer, lr)
    training.optimizer.step()
