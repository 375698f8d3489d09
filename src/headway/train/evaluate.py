"""Losses on validation sets: divided like a batch, all-reduced, over the same sequences every
time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from headway.data.reading.token_set import ReadOptions
from headway.errors import BadInput
from headway.plan.batch_division import num_micro_batches
from headway.spec.resolve import Resolved
from headway.train.batches import Loss
from headway.train.device import seed_generators
from headway.train.feed import Feed, open_feed
from headway.train.objectives import make_evaluation
from headway.train.own_results import LossFunction, MetricsFunction, Pair, own_metrics
from headway.train.precision import computing
from headway.train.stop_request import StopRequest
from headway.train.world import RankPlacement, World

WHOLE = "all"


@dataclass(frozen=True)
class EvaluationResult:
    loss: float
    count: int
    metrics: dict[str, float]
    """The objective's extras, and the user's own metrics."""


def num_rows(limit: int | Literal["all"], num_samples: int) -> int:
    return num_samples if limit == "all" else min(limit, num_samples)


def sample_of(seed: int, limit: int | Literal["all"], sizes: Iterable[int]) -> str:
    """A description of the sequences that evaluations of sets of these sizes use. Losses of
    different samples are never compared."""
    is_part = any(num_rows(limit, size) < size for size in sizes)
    return f"{limit} sequences drawn by seed {seed}" if is_part else WHOLE


@torch.no_grad()
def evaluate(
    model: nn.Module,
    feed: Feed,
    world: World,
    *,
    objective: LossFunction,
    metrics: MetricsFunction | None,
    resolved: Resolved,
    stop: StopRequest,
    on_progress: Callable[[], None],
) -> EvaluationResult | None:
    """COLLECTIVE. The result over at most `evaluation.sequences` of the set, a sample fixed by the
    seed. None if it was interrupted because a worker was asked to stop."""
    rows = num_rows(resolved.run.evaluation.sequences, feed.num_samples)
    num_in_all = num_micro_batches(rows, resolved.micro)
    share = world.share(num_in_all)
    batches = feed.fixed(rows, share)
    model.eval()
    pairs: torch.Tensor | None = None
    names: list[str] = []
    asked = deque[Callable[[], bool]]()
    for turn in range(world.max_passes(num_in_all)):
        asked.append(world.start_any(stop.asked))  # COLLECTIVE, so all call it equally often
        # On an accelerator, the answer of the pass before: so there is always work for it.
        if len(asked) > world.agrees_on_device and asked.popleft()():  # SYNC
            return None
        on_progress()
        if turn >= share.num_passes:
            continue
        batch = next(batches)
        seed_generators(batch.seed, world.device)
        with computing(resolved.run.precision, world.device):
            loss = objective(model, batch)
            measured = metrics(model, batch) if metrics is not None else {}
        named = _named(loss, measured)
        names = sorted(named)
        found = [(loss.sum, loss.count), *(named[name] for name in names)]
        numbers = torch.stack([x.to(torch.float64) for pair in found for x in pair])
        pairs = numbers if pairs is None else pairs + numbers
    assert pairs is not None, "a share has at least one micro-batch"
    sums = world.sums(pairs)  # COLLECTIVE, SYNC
    (total, count), *others = zip(sums[::2], sums[1::2], strict=True)
    mean = total / max(1.0, count)
    return EvaluationResult(
        loss=mean,
        count=int(count),
        metrics={
            name: part / max(1.0, number)
            for name, (part, number) in zip(names, others, strict=True)
        },
    )


class Evaluator:
    """The validation sets of a run, opened once."""

    def __init__(
        self, resolved: Resolved, placement: RankPlacement, stop: StopRequest, reading: ReadOptions
    ) -> None:
        self.resolved = resolved
        self.stop = stop
        self.feeds = {
            name: open_feed(resolved, location, placement.device, reading)
            for name, location in resolved.validation_sets.items()
        }
        self.sample = sample_of(
            resolved.run.seed,
            resolved.run.evaluation.sequences,
            [feed.num_samples for feed in self.feeds.values()],
        )
        self.objective = make_evaluation(resolved.run.objective, in_chunks=resolved.loss_in_chunks)
        metrics = resolved.run.evaluation.metrics
        self.metrics = own_metrics(metrics.call) if metrics else None

    def schedule(self) -> dict[str, float]:
        """How often the run evaluates, and how much: for the time left."""
        if not self.feeds:
            return {}
        run = self.resolved.run
        rows = sum(num_rows(run.evaluation.sequences, f.num_samples) for f in self.feeds.values())
        return {
            "evaluate_every": run.evaluation.every.amount,
            "evaluation_batches": round(rows / self.resolved.global_batch, 3),
        }

    def close(self) -> None:
        for feed in self.feeds.values():
            feed.close()

    def run(
        self, model: nn.Module, world: World, on_progress: Callable[[], None]
    ) -> dict[str, EvaluationResult] | None:
        """COLLECTIVE. Results by the name of the set; None if interrupted to stop. `on_progress`
        is called before every micro-batch."""
        results = {}
        for name, feed in self.feeds.items():
            result = evaluate(
                model,
                feed,
                world,
                objective=self.objective,
                metrics=self.metrics,
                resolved=self.resolved,
                stop=self.stop,
                on_progress=on_progress,
            )
            if result is None:
                return None
            results[name] = result
        return results


def _named(loss: Loss, measured: dict[str, Pair]) -> dict[str, Pair]:
    """The extras of the loss, each divided by its count, and the metrics."""
    twice = sorted(loss.extras.keys() & measured.keys())
    if twice:
        raise BadInput(
            f"evaluation.metrics: {twice[0]!r} is also an extra of the loss", "rename one of them"
        )
    return {**{name: (extra, loss.count) for name, extra in loss.extras.items()}, **measured}
