"""One step: compute the micro-batches, all-reduce, decide, apply.

The world is an argument: nothing here remembers who took part in the step before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from headway.spec.resolve import Resolved
from headway.train.device import copied_to, seed_generators
from headway.train.feed import Feed
from headway.train.gradient_all_reduce import GradientReducer
from headway.train.gradient_norm import squared_norm
from headway.train.host_copies import HostCopies
from headway.train.loss_guard import LossGuard
from headway.train.lr_schedule import lr_ratio
from headway.train.optim import set_lr
from headway.train.own_results import LossFunction
from headway.train.precision import LossScale, computing
from headway.train.weight_copies import WeightCopies
from headway.train.world import World


@dataclass
class Training:
    """Everything that a step changes, and what it needs for that."""

    resolved: Resolved
    total_steps: int
    model: nn.Module
    optimizer: torch.optim.Optimizer
    objective: LossFunction
    feed: Feed
    scale: LossScale
    guard: LossGuard
    gradient_reducer: GradientReducer
    copies: WeightCopies
    saved_copies: HostCopies = field(default_factory=HostCopies)
    """Copies of the state for a save: until they are made, the state must not change."""
    step: int = 0
    """Steps committed so far, and the index of the next one."""
    committed_in: int = 0
    """Generation that committed the last step. With the step it is the name of the state."""
    evaluated_step: int = 0
    """Last step after which an evaluation was done, or was not due."""
    parameters: tuple[nn.Parameter, ...] = field(init=False, repr=False)
    """Those of the model, in its order: walking through its modules at every step takes 0.1 ms even
    where there is one block."""

    def __post_init__(self) -> None:
        self.parameters = tuple(self.model.parameters())


@dataclass(frozen=True)
class Flags:
    """What a worker contributes to a step besides gradients."""

    stop: bool = False
    """Stop after this step."""
    save: bool = False
    """Save after this step."""
    leaving: bool = False
    """This worker's machine is wanted back."""
    ahead: int = 0
    """Generations that this worker knows beyond the one it works in."""


@dataclass(frozen=True)
class Agreed:
    """What all workers do after a step: the same on all, since it comes from the all-reduce."""

    stop: bool = False
    """Some worker wants to stop, or all have to leave."""
    save: bool = False
    """Some worker wants to save."""
    over: bool = False
    """All know the same newer generation, and enter it."""


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
    """Why the update of this step was skipped; its data counts as consumed."""
    agreed: Agreed = Agreed()


def take_step(training: Training, world: World, flags: Flags) -> StepResult:
    """COLLECTIVE. Computes and commits step `training.step`; the same result on every worker.
    Raises PeerLost when a worker is lost: then nothing has changed, and the step can be computed
    again in another world."""
    run, step = training.resolved.run, training.step
    with training.copies.in_use():
        sums, own_count, names = run_micro_batches(training, world)
    sum_all = _sums_on_device if world.agrees_on_device else _sums_on_host
    totals = sum_all(training, world, sums, own_count, _raised(flags))  # COLLECTIVE, SYNC
    count = totals.count
    loss, *extras = (value / max(1, count) for value in totals.sums)
    divisor = count * training.scale.factor(_micro_batch_tokens(training))
    grad_norm = math.sqrt(totals.squared_norm) / divisor if count else 0.0

    reason = training.guard.verdict(loss, grad_norm) if count else "it has no targets"
    lr = run.optimizer.lr * lr_ratio(run.schedule, step, training.total_steps)
    if reason is None:
        training.saved_copies.wait()  # a save may still copy what changes now
        _apply(training, grad_norm, divisor, lr)
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
        agreed=_agreed(totals.raised, world.num_workers),
    )


@dataclass(frozen=True)
class Totals:
    """Sums over all workers, of one step."""

    sums: list[float]
    """Loss and extras."""
    squared_norm: float
    count: int
    raised: list[int]


def _sums_on_host(
    training: Training, world: World, sums: torch.Tensor, own_count: torch.Tensor, raised: list[int]
) -> Totals:
    """COLLECTIVE. Raises PeerLost unless the sums of every worker are whole."""
    lost = training.gradient_reducer.finish(sums)  # COLLECTIVE
    totals = torch.cat([sums, squared_norm(_gradients(training)).view(1)])
    if world.domain is not None:
        world.domain.all_reduce(totals)  # COLLECTIVE
    *totals_here, squared, count_here = torch.cat([totals, own_count.view(1)]).tolist()
    # COLLECTIVE, and the last one: a worker that has its result commits.
    count, *all_raised = world.control_all_reduce([int(count_here), *raised], lost)
    return Totals(totals_here, squared, count, all_raised)


def _sums_on_device(
    training: Training, world: World, sums: torch.Tensor, own_count: torch.Tensor, raised: list[int]
) -> Totals:
    """COLLECTIVE. The same on an accelerator, by one all-reduce after that of the gradients, of a
    vector in fp64, which holds the integers exactly. A worker that has lost a peer does not take
    part, so nobody gets a result. All get the same bits, of the norm as well: it is that of the
    first copy's gradients."""
    lost = training.gradient_reducer.finish(None)  # COLLECTIVE
    if lost is not None:
        raise lost
    is_first_copy = world.rank < world.shard_size
    squared = squared_norm(_gradients(training)) if is_first_copy else torch.zeros_like(sums[0])
    integers = copied_to(world.device, np.array(raised, dtype=np.float64))
    vector = torch.cat([sums, squared.view(1), own_count.double().view(1), integers])
    # COLLECTIVE, the last one. SYNC: the one moment at which the host waits for the device.
    found = world.sums(vector)
    squared_at = len(sums)
    count, *all_raised = map(int, found[squared_at + 1 :])
    return Totals(found[:squared_at], found[squared_at], count, all_raised)


def _gradients(training: Training) -> list[torch.Tensor]:
    return [p.grad for p in training.parameters if p.grad is not None]


def run_micro_batches(
    training: Training, world: World
) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Forward and backward over this worker's micro-batches. Sums and count stay on the device."""
    run = training.resolved.run
    factor = training.scale.factor(_micro_batch_tokens(training))
    if not training.model.training:  # after an evaluation
        training.model.train()
    training.gradient_reducer.begin(world.replicas)
    share = world.share(training.feed.num_micro_batches)
    sums: torch.Tensor | None = None
    count = torch.zeros((), dtype=torch.int64, device=world.device)
    names: list[str] = []
    for index, batch in enumerate(training.feed.step(training.step, share)):
        world.require_all_alive()
        seed_generators(batch.seed, world.device)
        with computing(run.precision, world.device):
            loss = training.objective(training.model, batch)
        if index + 1 == share.num_passes:
            training.gradient_reducer.last_micro_batch()
        (loss.sum * factor if factor != 1.0 else loss.sum).backward()
        names = sorted(loss.extras)
        parts = torch.stack([loss.sum.detach(), *(loss.extras[name].detach() for name in names)])
        sums = parts.double() if sums is None else sums + parts.double()
        count = count + loss.count
    assert sums is not None, "a share has at least one micro-batch"
    return sums, count, names


def _raised(flags: Flags) -> list[int]:
    """The flags as integers, for an all-reduce over all workers."""
    return [flags.stop, flags.save, flags.leaving, flags.ahead, flags.ahead**2]


def _agreed(raised: list[int], num_workers: int) -> Agreed:
    stop, save, leaving, ahead, squares = raised
    return Agreed(
        stop=stop > 0 or leaving == num_workers,
        save=save > 0,
        # The square of the sum reaches this value only if all summands are equal.
        over=ahead > 0 and ahead**2 == num_workers * squares,
    )


def _micro_batch_tokens(training: Training) -> int:
    return training.resolved.micro * training.resolved.run.data.sequence_length


@torch.no_grad()
def _apply(training: Training, grad_norm: float, divisor: float, lr: float) -> None:
    """Divides and clips the gradients in one pass, then updates the weights."""
    limit = training.resolved.run.optimizer.max_grad_norm
    clip = 1.0 if limit == "off" else min(1.0, limit / (grad_norm + 1e-6))
    torch._foreach_mul_(_gradients(training), clip / divisor)
    set_lr(training.optimizer, lr)
    training.optimizer.step()
