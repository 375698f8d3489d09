"""Activation statistics: figures of the output and the attention of each block.

Every so many steps one micro-batch of the step goes through the network once more, without
gradients and in evaluation mode, with hooks on the blocks and on attention (attention_figures.py).
Training does not notice: modes, random state and attention are put back as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from headway.plan.batch_division import MicroBatchShare, micro_batch_rows
from headway.train.attention_figures import ATTENTION_FIGURES, ByBlock, watched_attention
from headway.train.device import seed_generators
from headway.train.models import BuiltModel
from headway.train.objectives import logits_of
from headway.train.precision import computing
from headway.train.recorder import Recorder
from headway.train.step import Training
from headway.train.undisturbed import undisturbed
from headway.train.world import World

OUTPUT_FIGURES = ("mean", "std", "largest", "zeros")

Figures = list[dict[str, float]]
"""By block."""


class ActivationWatch:
    """Measures the activations of a model when due."""

    def __init__(self, training: Training, built: BuiltModel) -> None:
        self.training = training
        self.built = built
        asked = training.resolved.run.watch.activations
        self.every = int(asked.every.amount) if asked is not None else None

    def record(self, world: World, recorder: Recorder) -> None:
        """COLLECTIVE in the leader's shard group. When it is due after the step that was committed
        last; only the leader records the figures."""
        # A shard group gathers the weights of each block together, so all of the leader's group
        # run the pass, or it hangs. The other workers do not take part: they wait in the next step.
        takes_part = world.rank < world.shard_size
        if self.every is None or not takes_part or self.training.step % self.every:
            return
        figures = measure_activations(self.training, self.built, world)
        recorder.activations(self.training.step, figures)


def measure_activations(training: Training, built: BuiltModel, world: World) -> Figures:
    """COLLECTIVE in the leader's shard group: one pass over the first micro-batch of the last
    step."""
    run, feed, model = training.resolved.run, training.feed, training.model
    batch = next(feed.step(training.step - 1, MicroBatchShare(first=0, count=1, padded=0)))
    rows = micro_batch_rows(0, feed.global_batch, feed.micro)[1]
    blocks = built.blocks or [model]
    outputs: ByBlock = {}
    with ExitStack() as stack:
        stack.enter_context(undisturbed(model, world.device))
        attention = stack.enter_context(watched_attention(blocks))
        stack.enter_context(_watched_outputs(blocks, rows, outputs))
        stack.enter_context(training.copies.in_use())
        stack.enter_context(computing(run.precision, world.device))
        seed_generators(batch.seed, world.device)
        if run.objective.call is not None or training.resolved.loss_in_chunks:
            training.objective(model, batch)
        else:
            logits_of(model, batch.inputs)
    return _by_block(outputs, attention)


@contextmanager
def _watched_outputs(blocks: list[nn.Module], rows: int, outputs: ByBlock) -> Iterator[None]:
    """`rows`: those that are no padding come first."""

    def hook(block: int, output: Any) -> None:
        values = _first_tensor(output)
        if values is not None:
            outputs[block] = _output_figures(values[:rows].float())

    handles = [
        block.register_forward_hook(
            lambda _module, _inputs, output, index=index: hook(index, output)
        )
        for index, block in enumerate(blocks)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _output_figures(values: torch.Tensor) -> torch.Tensor:
    std, mean = torch.std_mean(values, correction=0)
    zeros = (values == 0).float().mean()
    return torch.stack([mean, std, values.abs().max(), zeros])


def _by_block(outputs: ByBlock, attention: ByBlock) -> Figures:
    blocks = sorted(outputs)
    if not blocks:
        return []
    none = torch.zeros(len(ATTENTION_FIGURES), device=outputs[blocks[0]].device)
    values = [torch.cat([outputs[block], attention.get(block, none)]) for block in blocks]
    names = (*OUTPUT_FIGURES, *ATTENTION_FIGURES)
    found = [dict(zip(names, row, strict=True)) for row in torch.stack(values).tolist()]  # SYNC
    for block, figures in zip(blocks, found, strict=True):
        if block not in attention:
            for name in ATTENTION_FIGURES:
                del figures[name]
    return found


def _first_tensor(output: Any) -> torch.Tensor | None:
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, tuple | list):
        return next((part for part in output if isinstance(part, torch.Tensor)), None)
    return None
