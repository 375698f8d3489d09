"""Activation statistics: figures of the output and the attention of each block.

Every so many steps one micro-batch of the step goes through the network once more, without
gradients and in evaluation mode, with hooks on the blocks. Fast attention kernels never form the
weights that we want to look at, so transformers' plain implementation takes their place for that
one pass. Training does not notice: modes, random state and attention are put back as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from headway.plan.batch_division import MicroBatchShare, micro_batch_rows
from headway.train.device import seed_generators
from headway.train.models import BuiltModel
from headway.train.precision import computing
from headway.train.recorder import Recorder
from headway.train.step import Training
from headway.train.undisturbed import undisturbed
from headway.train.world import World

ATTENTION_BYTES = 2**30
"""What the attention weights of one block may take on the device. They grow with the square of the
length: a micro-batch that would need more is cut, so that watching never runs out of memory where
training does not."""
BYTES_PER_WEIGHT = 12
"""Scores, mask or their sum, and probabilities, in fp32, all there at one moment."""
OUTPUT_FIGURES = ("mean", "std", "largest", "zeros")
ENTROPY = "attention_entropy"

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
    heads = getattr(model.config, "num_attention_heads", None) if built.is_transformers else None
    own_objective = run.objective.call is not None
    inputs = batch.inputs
    if heads is not None and not own_objective:  # own code is promised micro-batches of one shape
        inputs = _cut(inputs[:rows], heads)
    with_attention = heads is not None and _fits(inputs, heads)
    figures = BlockFigures(min(rows, len(inputs)))
    with ExitStack() as stack:
        stack.enter_context(undisturbed(model, world.device))
        if with_attention:
            stack.enter_context(_plain_attention(model))
        stack.enter_context(_hooked(built.blocks or [model], figures, with_attention))
        stack.enter_context(training.copies.in_use())
        stack.enter_context(computing(run.precision, world.device))
        seed_generators(batch.seed, world.device)
        if own_objective:
            training.objective(model, batch)
        else:
            model(inputs)
    return figures.by_block()


def _cut(inputs: torch.Tensor, heads: int) -> torch.Tensor:
    """As many rows as fit; of a single row that does not fit, its beginning. What a causal model
    computes there does not depend on the rest."""
    weights = ATTENTION_BYTES // (BYTES_PER_WEIGHT * heads)
    length = min(inputs.shape[1], int(weights**0.5))
    return inputs[: max(1, weights // length**2), :length]


def _fits(inputs: torch.Tensor, heads: int) -> bool:
    rows, length = inputs.shape
    return rows * length**2 * heads * BYTES_PER_WEIGHT <= ATTENTION_BYTES


@dataclass
class BlockFigures:
    """Figures that the hooks of one pass collect, still on the device."""

    rows: int
    """Rows that are no padding come first."""
    outputs: dict[int, torch.Tensor] = field(default_factory=dict)
    entropies: dict[int, torch.Tensor] = field(default_factory=dict)

    def output(self, block: int, output: Any) -> None:
        values = _first_tensor(output)
        if values is None:
            return
        values = values[: self.rows].float()
        std, mean = torch.std_mean(values, correction=0)
        zeros = (values == 0).float().mean()
        self.outputs[block] = torch.stack([mean, std, values.abs().max(), zeros])

    def attention(self, block: int, output: Any) -> None:
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        # Attention modules nest in some models (BERT); the innermost comes first and is enough.
        if not isinstance(weights, torch.Tensor) or weights.ndim != 4 or block in self.entropies:
            return
        shares = weights[: self.rows].float()
        shares = shares / shares.sum(-1, keepdim=True)  # in bf16 they add up to nearly one
        self.entropies[block] = torch.special.entr(shares).sum(-1).mean()

    def by_block(self) -> Figures:
        blocks = sorted(self.outputs)
        if not blocks:
            return []
        none = torch.zeros_like(self.outputs[blocks[0]][:1])
        values = [
            torch.cat([self.outputs[block], self.entropies.get(block, none).view(1)])
            for block in blocks
        ]
        names = (*OUTPUT_FIGURES, ENTROPY)
        found = [dict(zip(names, row, strict=True)) for row in torch.stack(values).tolist()]  # SYNC
        for block, figures in zip(blocks, found, strict=True):
            if block not in self.entropies:
                del figures[ENTROPY]
        return found


def _first_tensor(output: Any) -> torch.Tensor | None:
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, dict):
        output = tuple(output.values())
    if isinstance(output, tuple | list):
        return next((part for part in output if isinstance(part, torch.Tensor)), None)
    return None


@contextmanager
def _hooked(blocks: list[nn.Module], figures: BlockFigures, with_attention: bool) -> Iterator[None]:
    handles = []
    for index, block in enumerate(blocks):
        handles.append(
            block.register_forward_hook(
                lambda _module, _inputs, output, index=index: figures.output(index, output)
            )
        )
        for module in block.modules() if with_attention else ():
            if "attention" in type(module).__name__.lower():
                handles.append(
                    module.register_forward_hook(
                        lambda _module, _inputs, output, index=index: figures.attention(
                            index, output
                        )
                    )
                )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _plain_attention(model: Any) -> Iterator[None]:
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
