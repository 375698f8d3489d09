"""What a run computes and how it is laid out, as numbers: what every estimate starts from.

A `Workload` is what the run file says must be computed: it is the same on every machine. A `Layout`
is how the devices divide it, which may be chosen by what fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headway.plan.accelerators import Precision
from headway.plan.model_size import ModelSize, flops_per_token, model_size, padded_vocabulary
from headway.plan.train_length import num_steps
from headway.spec.load import Begun
from headway.spec.resolve import (
    ALL_BLOCKS,
    Resolved,
    choose_micro,
    computes_loss_in_chunks,
    recomputed_blocks,
)
from headway.spec.run_file import ModelConfig, RunFile


@dataclass(frozen=True)
class CountedModel:
    """A model whose type and config say its shape."""

    type: str
    config: Mapping[str, Any]
    """Of transformers, with `vocab_size`."""
    size: ModelSize


@dataclass(frozen=True)
class Workload:
    model: CountedModel
    teacher: CountedModel | None
    """Of distillation: it only runs forward."""
    sequence_length: int
    global_batch: int
    """Sequences of a step, over all devices."""
    micro: int
    """Sequences that a device computes at once."""
    precision: Precision
    optimizer: Literal["adamw", "lamb"]
    compiles: bool
    loss_in_chunks: bool
    """Whether the loss is computed in chunks of rows."""
    steps: int | None
    """None if only the data determines it, as for epochs of a set that is not known."""
    epoch_samples: int | None = None
    """Sequences of an epoch, where the number of steps is given in epochs and the set is known."""
    is_micro_open: bool = False
    """Whether Headway may choose `micro` by the devices."""

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.sequence_length

    @property
    def flops_per_token(self) -> int:
        """Of the model alone; what is recomputed and the teacher's are not in it."""
        return flops_per_token(self.model.size, self.sequence_length)


@dataclass(frozen=True)
class Layout:
    """How the devices of a run divide its model."""

    shard_devices: int
    """Devices that hold one copy of weights, gradients and optimizer state; 1: each holds all."""
    recomputed_blocks: int
    """Blocks that are recomputed in the backward pass, counted from the first one. It may be more
    than the model has, such as ALL_BLOCKS."""
    offloads: bool = False
    """Whether the inputs of recomputed blocks wait in the host's memory."""

    @property
    def checkpoint_activations(self) -> bool | int:
        """The same as `memory.checkpoint_activations` has it."""
        number = self.recomputed_blocks
        return number == ALL_BLOCKS if number in (0, ALL_BLOCKS) else number


def layout_of(resolved: Resolved) -> Layout:
    return Layout(
        resolved.copy_ranks,
        recomputed_blocks(resolved.checkpoint_activations),
        resolved.run.memory.offload != "none",
    )


def workload_of(
    run: RunFile,
    vocabulary: int | None,
    saved: Mapping[str, Any] | None = None,
    teacher: Mapping[str, Any] | None = None,
    epoch_samples: int | None = None,
    begun: Begun | None = None,
) -> Workload | None:
    """None if the run file does not say the model's shape: it is a script, a function of the
    user's, or its config is on the hub.

    `vocabulary`: number of tokens of the tokenizer, if that is known. `saved`, `teacher`: configs
    of the models that `model.from` and the objective's teacher name, if they were read.
    `epoch_samples`: sequences of an epoch, if that is known. `begun`: of a run that was started.
    """
    if run.model is None or run.batch is None or run.command is not None:
        return None
    model = counted_model(run.model, vocabulary, saved)
    if model is None:
        return None
    taught_by = run.objective.teacher
    length = run.data.sequence_length
    batch = run.batch.global_.sequences(length)
    by_epochs = run.train_for.unit == "epochs"
    samples = epoch_samples if by_epochs else None
    return Workload(
        model=model,
        teacher=counted_model(taught_by, vocabulary, teacher) if taught_by else None,
        sequence_length=length,
        global_batch=batch,
        micro=choose_micro(run, batch, None if begun is None else begun.micro),
        precision=run.precision,
        optimizer=run.optimizer.type,
        compiles=run.memory.compile,
        loss_in_chunks=computes_loss_in_chunks(run) if begun is None else begun.loss_in_chunks,
        steps=None
        if by_epochs and samples is None
        else num_steps(run.train_for.unit, run.train_for.amount, batch, length, samples),
        epoch_samples=samples,
        is_micro_open=run.batch.micro == "auto" and begun is None,
    )


def counted_model(
    model: ModelConfig, vocabulary: int | None, saved: Mapping[str, Any] | None = None
) -> CountedModel | None:
    """None if its type or its vocabulary is not known, or Headway cannot count such models."""
    type = model.type or (saved or {}).get("model_type")
    config = {**(saved or {}), **model.config}
    if "vocab_size" not in config:
        if vocabulary is None:
            return None
        config["vocab_size"] = padded_vocabulary(vocabulary)
    size = model_size(type, config) if isinstance(type, str) else None
    return None if size is None else CountedModel(str(type), config, size)
