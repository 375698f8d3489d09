"""One step: compute the slices, add up, decide, apply.

The world is an argument: nothing here remembers who took part in the step before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import nn

from headway.spec.resolve import Resolved
from headway.train.batches import seed_generators
from headway.train.copies import Copies
from headway.train.feed import Feed
from headway.train.guard import LossGuard
from headway.train.norm import squared_norm
from headway.train.objectives import LossFunction
from headway.train.optim import set_lr
from headway.train.precision import LossScale, computing
from headway.train.replicate import Gradients
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
    gradients: Gradients
    copies: Copies
    step: int = 0
    """Steps committed so far: the next one to compute."""
    committed_in: int = 0
    """The generation that committed the last of them. With the step it is the state's name."""
    evaluated_step: int = 0
    """The last one after which an evaluation was done, or not due."""


@dataclass(frozen=True)
class Flags:
    """What a worker brings to a step, besides gradients."""

    stop: bool = False
    """Stop after this step."""
    save: bool = False
    """Save after this step."""
    leaving: bool = False
    """This worker's machine is wanted back."""
    ahead: int = 0
    """By how many generations the newest one it knows is ahead of the one it works in."""


@dataclass(frozen=True)
class Agreed:
    """What all workers do after a step: the same on all, for it comes out of the reduction."""

    stop: bool = False
    """Some worker wants to stop, or all have to leave."""
    save: bool = False
    """Some worker wants to save."""
    over: bool = False
    """All know the same newer generation: they go over to it."""


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
    agreed: Agreed = Agreed()


def take_step(training: Training, world: World, flags: Flags) -> StepResult:
    """COLLECTIVE. Computes and commits step `training.step`; the same result on every worker.
    Raises PeerLost when a worker is lost: then nothing has changed, and the step can be taken again
    in another world."""
    run, step = training.resolved.run, training.step
    with training.copies.in_use():
        sums, own_count, names = _run_slices(training, world)
    lost = training.gradients.finish(sums)  # COLLECTIVE
    gradients = [p.grad for p in training.model.parameters() if p.grad is not None]
    totals = torch.cat([sums, squared_norm(gradients).view(1)])
    if world.domain is not None:
        world.domain.add_up(totals)  # COLLECTIVE
    # SYNC: the one moment of a step at which the host waits for the device.
    *totals_here, squared, count_here = torch.cat([totals, own_count.view(1)]).tolist()
    # COLLECTIVE, and the last one: whoever has its result commits.
    count, *raised = world.control([int(count_here), *_raised(flags)], lost)
    loss, *extras = (value / max(1, count) for value in totals_here)
    divisor = count * training.scale.factor(_slice_tokens(training))
    grad_norm = math.sqrt(squared) / divisor if count else 0.0

    reason = training.guard.verdict(loss, grad_norm) if count else "it has no targets"
    lr = run.optimizer.lr * lr_ratio(run.schedule, step, training.total_steps)
    if reason is None:
        _apply(training, gradients, grad_norm, divisor, lr)
    training.scale.update(finite=math.isfinite(grad_norm))
    training.guard.record(loss, reason)
    training.step, training.committed_in = step + 1, world.generation
    return StepResult(
        step=step + 1,
        loss=loss,
        count=count,
        grad_norm=grad_norm,
        lr=lr,
        extras=dict(zip(names, extras, strict=True)),
        skipped=reason,
        agreed=_agreed(raised, world.num_workers),
    )


def _run_slices(training: Training, world: World) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Forward and backward over this worker's slices. Sums and count stay on the device."""
    run = training.resolved.run
    factor = training.scale.factor(_slice_tokens(training))
    if not training.model.training:  # after an evaluation
        training.model.train()
    training.gradients.begin(world.replicas)
    share = world.share(training.feed.num_slices)
    sums: torch.Tensor | None = None
    count = torch.zeros((), dtype=torch.int64, device=world.device)
    names: list[str] = []
    for index, batch in enumerate(training.feed.step(training.step, share)):
        world.require_whole()
        seed_generators(batch.seed, world.device)
        with computing(run.precision, world.device):
            loss = training.objective(training.model, batch)
        if index + 1 == share.passes:
            training.gradients.last_slice()
        (loss.sum * factor if factor != 1.0 else loss.sum).backward()
        names = sorted(loss.extras)
        parts = torch.stack([loss.sum.detach(), *(loss.extras[name].detach() for name in names)])
        sums = parts.double() if sums is None else sums + parts.double()
        count = count + loss.count
    assert sums is not None, "a share has at least one slice"
    return sums, count, names


def _raised(flags: Flags) -> list[int]:
    """As numbers, for a sum over all workers."""
    return [flags.stop, flags.save, flags.leaving, flags.ahead, flags.ahead**2]


def _agreed(raised: list[int], num_workers: int) -> Agreed:
    stop, save, leaving, ahead, squares = raised
    return Agreed(
        stop=stop > 0 or leaving == num_workers,
        save=save > 0,
        # The square of a sum is as large as this only if all that is added up is the same.
        over=ahead > 0 and ahead**2 == num_workers * squares,
    )


def _slice_tokens(training: Training) -> int:
    return training.resolved.micro * training.resolved.run.data.sequence_length


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
