"""Losses on held-out sets: divided like a batch, added up, the same sequences every time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from headway.data.reading.tokenset import Reading
from headway.errors import BadInput
from headway.plan.batch import num_slices
from headway.spec.resolve import Resolved
from headway.state.checkpoints import SAMPLE, CheckpointManifest
from headway.state.code import find_function
from headway.state.rundir import Journal
from headway.train.batches import seed_generators
from headway.train.feed import Feed, open_feed
from headway.train.objectives import LossFunction, make_evaluation
from headway.train.precision import computing
from headway.train.preempt import StopRequest
from headway.train.world import Place, World

MetricsFunction = Callable[..., dict[str, tuple[Any, Any]]]
LARGEST_EXPONENT = 50.0
"""exp of more says nothing any more and would overflow the plots."""


WHOLE = "all"


@dataclass(frozen=True)
class EvaluationResult:
    loss: float
    perplexity: float
    count: int
    metrics: dict[str, float]


def perplexity(loss: float) -> float:
    return math.exp(min(loss, LARGEST_EXPONENT)) if math.isfinite(loss) else math.inf


def num_rows(limit: int | Literal["all"], num_samples: int) -> int:
    return num_samples if limit == "all" else min(limit, num_samples)


def sample_of(seed: int, limit: int | Literal["all"], sizes: Iterable[int]) -> str:
    """What evaluations of sets with so many samples take of them, in words. Losses of different
    samples are not compared."""
    is_part = any(num_rows(limit, size) < size for size in sizes)
    return f"{limit} sequences drawn by seed {seed}" if is_part else WHOLE


def note_new_sample(journal: Journal, resumed: CheckpointManifest, sample: str) -> None:
    """Once, for a run begun before evaluations took a sample: its next checkpoint knows of it."""
    if SAMPLE not in resumed.scalars and sample != WHOLE:
        journal.note(
            "evaluation_changed",
            step=resumed.step,
            reason=f"evaluations now take {sample} from each validation set, no longer its first "
            "ones: losses from before and after are not compared",
        )


@torch.no_grad()
def evaluate(
    model: nn.Module,
    objective: LossFunction,
    metrics: MetricsFunction | None,
    feed: Feed,
    resolved: Resolved,
    world: World,
    stop: StopRequest,
    advanced: Callable[[], None],
) -> EvaluationResult | None:
    """COLLECTIVE. Over at most `evaluation.sequences` of the set, a sample fixed by the seed; None
    when it was left because some worker was asked to stop."""
    rows = num_rows(resolved.run.evaluation.sequences, feed.num_samples)
    slices = num_slices(rows, resolved.micro)
    share = world.share(slices)
    batches = feed.fixed(rows, share)
    model.eval()
    pairs: torch.Tensor | None = None
    names: list[str] = []
    for turn in range(world.most_passes(slices)):
        if world.any(stop.asked):  # COLLECTIVE, so every worker comes here equally often
            return None
        advanced()
        if turn >= share.passes:
            continue
        batch = next(batches)
        seed_generators(batch.seed, world.device)
        with computing(resolved.run.precision, world.device):
            loss = objective(model, batch)
            measured = metrics(model, batch) if metrics is not None else {}
        names = sorted(measured)
        found = [(loss.sum, loss.count), *(checked_pair(name, measured[name]) for name in names)]
        numbers = torch.stack(
            [torch.as_tensor(x, device=world.device).double() for pair in found for x in pair]
        )
        pairs = numbers if pairs is None else pairs + numbers
    assert pairs is not None, "a share has at least one slice"
    world.add_up(pairs)  # COLLECTIVE
    (total, count), *others = pairs.view(-1, 2).tolist()  # SYNC
    mean = total / max(1.0, count)
    return EvaluationResult(
        loss=mean,
        perplexity=perplexity(mean),
        count=int(count),
        metrics={
            name: part / max(1.0, number)
            for name, (part, number) in zip(names, others, strict=True)
        },
    )


class Evaluator:
    """The validation sets of a run, opened once."""

    def __init__(
        self, resolved: Resolved, place: Place, stop: StopRequest, reading: Reading
    ) -> None:
        self.resolved = resolved
        self.stop = stop
        self.feeds = {
            name: open_feed(resolved, location, place.device, reading)
            for name, location in resolved.validation_sets.items()
        }
        self.sample = sample_of(
            resolved.run.seed,
            resolved.run.evaluation.sequences,
            [feed.num_samples for feed in self.feeds.values()],
        )
        self.objective = make_evaluation(resolved.run.objective)
        metrics = resolved.run.evaluation.metrics
        self.metrics = find_function(metrics.call) if metrics else None

    def close(self) -> None:
        for feed in self.feeds.values():
            feed.close()

    def run(
        self, model: nn.Module, world: World, advanced: Callable[[], None]
    ) -> dict[str, EvaluationResult]:
        """COLLECTIVE. Results by the name of the set; none when it was left to stop. `advanced` is
        called after every slice."""
        results = {}
        for name, feed in self.feeds.items():
            result = evaluate(
                model, self.objective, self.metrics, feed, self.resolved, world, self.stop, advanced
            )
            if result is None:
                return {}
            results[name] = result
        return results


def checked_pair(name: str, value: Any) -> tuple[Any, Any]:
    if not (isinstance(value, tuple) and len(value) == 2):
        raise BadInput(
            f"evaluation.metrics: {name!r} is {type(value).__name__}",
            "return {name: (sum, count)}: Headway adds both up and divides once",
        )
    return value
