"""The moments of a step at which memory can be highest, and what is alive at each of them, counted
part by part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.plan.accelerators import Precision
from headway.plan.batch_division import loss_rows, num_micro_batches, share_of
from headway.plan.fleet import Fleet
from headway.plan.saved_activations import (
    NUMBER_BYTES,
    KeptBytes,
    LayerShape,
    kept_bytes,
    layer_shape,
)
from headway.plan.workload import Layout, Workload

Bytes = Mapping[str, int]
"""Bytes, keyed by the name of a part."""

MICRO_GRADIENTS = "gradients of a micro-batch"


@dataclass(frozen=True)
class StateBytes:
    """Bytes per parameter that a device, or a group of them, holds for a whole step."""

    weights: int = 4
    gradients: int = 4
    optimizer: int = 8
    reduce: int = 4
    """Bytes of a number of a gradient while it is reduce-scattered."""


@dataclass(frozen=True)
class StepShape:
    """One device's step, in the numbers that its memory depends on."""

    model: LayerShape
    parameters: int
    kept: KeptBytes
    number: int
    """Bytes of an activation, and of a weight that is computed with."""
    tokens: int
    """Tokens of a micro-batch."""
    shards: int
    recomputed: int
    """Layers that are recomputed in the backward pass, counted from the first one."""
    has_gradients: bool
    """Whether there are gradients before the backward pass that is looked at: of an earlier
    micro-batch, or zeros in buckets."""
    on_gpu: bool
    offloads: bool = False
    ends_apart: bool = False
    """Whether the token table and the output head are units of sharding beside the layers."""
    teacher_parameters: int = 0
    uses_lamb: bool = False
    state: StateBytes = StateBytes()
    logits_bytes: int = 12
    """Per token and vocabulary entry, where the loss is differentiated: the log-softmax that was
    kept, and two gradients."""
    loss_rows: int | None = None
    """Rows of a chunk, if the loss is computed in chunks."""

    @property
    def root_parameters(self) -> int:
        """Return the number of parameters that are in no layer."""
        return self.parameters - self.model.layers * self.model.layer_parameters

    @property
    def is_sharded(self) -> bool:
        return self.shards > 1


def step_shape(workload: Workload, fleet: Fleet, layout: Layout) -> StepShape:
    model = layer_shape(workload.model)
    on_gpu = fleet.device is not None
    batches = num_micro_batches(workload.global_batch, workload.micro)
    shards = min(layout.shard_devices, fleet.num_devices)
    workers = fleet.num_devices - fleet.num_devices % shards
    passes = share_of(batches, workers, shards, 0).num_passes
    is_bucketed = workers > shards
    teacher = workload.teacher
    return StepShape(
        model=model,
        parameters=workload.model.size.parameters,
        kept=kept_bytes(model, workload.sequence_length, workload.precision, fleet.device),
        number=NUMBER_BYTES[workload.precision],
        tokens=workload.micro * workload.sequence_length,
        shards=shards,
        recomputed=min(layout.recomputed_blocks, model.layers),
        offloads=layout.offloads,
        ends_apart=shards > 1 and not model.is_tied,
        has_gradients=passes > 1 or is_bucketed,
        on_gpu=on_gpu,
        teacher_parameters=teacher.size.parameters if teacher else 0,
        uses_lamb=workload.optimizer == "lamb",
        loss_rows=loss_rows(workload.micro * workload.sequence_length, model.vocabulary)
        if workload.loss_in_chunks
        else None,
        logits_bytes=12 if teacher is None else _distilled_logits_bytes(workload.precision),
    )


def highest_moment(shape: StepShape) -> tuple[str, Bytes]:
    """When a step needs most, and what is alive then."""
    moments = {
        **_at_losses(shape),
        "in the backward pass of the output head": _at_head(shape),
        "when the gradients of the output head are reduced": _at_reduced_head(shape),
        "in the backward pass of the last layer": _at_layer(shape, done=0),
        **_at_recomputed(shape),
        "in the backward pass of the first layer": _at_layer(shape, done=shape.model.layers - 1),
        "at the end of the backward pass": _at_end(shape),
        "when the optimizer updates the weights": _at_update(shape),
    }
    name = max(moments, key=lambda moment: sum(moments[moment].values()))
    return name, {part: size for part, size in moments[name].items() if size}


def largest_part(shape: StepShape) -> int:
    """Parameters of the largest tensor: a table of tokens, or a matrix of a layer."""
    return max(shape.model.table_parameters, shape.model.hidden * shape.model.inner)


def state_parts(shape: StepShape) -> dict[str, int]:
    """Return what is alive from the first step to the last, apart from gradients."""
    teacher = divided(4 * shape.teacher_parameters, shape.shards)
    return {
        "weights": divided(shape.state.weights * shape.parameters, shape.shards),
        "optimizer": divided(shape.state.optimizer * shape.parameters, shape.shards),
        "teacher": teacher,
    }


def gradient_parts(shape: StepShape, parameters: int | None = None) -> dict[str, int]:
    number = shape.parameters if parameters is None else parameters
    return {"gradients": divided(shape.state.gradients * number, shape.shards)}


def _in_passes(shape: StepShape, *, is_head_done: bool = False) -> dict[str, int]:
    """Beside the state, from the first forward pass to the last backward pass."""
    is_copied = shape.number != shape.state.weights and not shape.is_sharded
    held = shape.root_parameters
    if shape.ends_apart:
        held -= shape.model.table_parameters * (2 if is_head_done else 1)
    gathered = shape.number * held if shape.is_sharded else 0
    return {
        **state_parts(shape),
        "weight copies": shape.number * shape.parameters if is_copied else 0,
        # Sharding keeps what is in no unit inside gathered until the end of the backward pass, and
        # a head that is a unit until its own.
        "gathered weights": gathered,
    }


def _kept_in_layers(shape: StepShape, layers: int) -> int:
    """Activations of so many layers whose backward pass is still to come."""
    kept, recomputed = shape.kept, min(layers, shape.recomputed)
    on_device = kept.of_layers(layers, shape.recomputed)
    if shape.offloads:
        # One is copied while another is used.
        on_device -= max(0, recomputed - 2) * kept.block_input
    return shape.tokens * on_device


def _at_losses(shape: StepShape) -> dict[str, Bytes]:
    """All activations are there, and logits with their gradients."""
    model, number, rows = shape.model, shape.number, shape.loss_rows
    common = {
        **_in_passes(shape),
        **gradient_parts(shape, None if shape.has_gradients else 0),
        "activations": _kept_in_layers(shape, model.layers) + shape.tokens * shape.kept.ends,
    }
    if rows is None:
        logits = shape.tokens * shape.logits_bytes * model.vocabulary
        return {"when the loss is differentiated": {**common, "logits": logits}}
    common["gradients of activations"] = shape.tokens * number * model.hidden
    if shape.ends_apart:  # FSDP2 keeps the buffer that the head was gathered in until the backward
        common["gathered weights"] += number * model.table_parameters
    # Of several chunks the head's gradients are added up in fp32, and in place if they are fp32.
    table, is_one = model.table_parameters, rows == shape.tokens
    added = 0 if is_one else 4 * table
    product = number * table if is_one or number != 4 else 0
    entries = rows * model.vocabulary
    # Beside logits in fp32 are those that the head returned, or the gradient that it gets.
    before = {"logits": entries * (4 if number == 4 else 4 + number), MICRO_GRADIENTS: added}
    then = {"logits": entries * number, MICRO_GRADIENTS: added + product}
    return {
        "when the loss is computed": {**common, **before},
        "when the output head's gradient is computed": {**common, **then},
    }


def _at_head(shape: StepShape) -> Bytes:
    """The gradient of the logits and that of the head's weights are alive. In chunks both were
    computed with the loss."""
    model, number, tokens = shape.model, shape.number, shape.tokens
    passing = _in_passes(shape)
    return {
        **passing,
        "gathered weights": passing["gathered weights"] + _gathered_ahead(shape),
        **gradient_parts(shape, None if shape.has_gradients else 0),
        "activations": _kept_in_layers(shape, model.layers) + tokens * shape.kept.ends,
        "logits": tokens * number * model.vocabulary if shape.loss_rows is None else 0,
        MICRO_GRADIENTS: _gradient_of_table(shape),
    }


def _gathered_ahead(shape: StepShape) -> int:
    """Of the last layer, during the backward pass of a head that is a unit."""
    return shape.number * shape.model.layer_parameters if shape.ends_apart else 0


def _gradient_of_table(shape: StepShape) -> int:
    """Of the head, while it is waiting: for the table of tokens if they are tied, for the rest of
    its unit if it is sharded; otherwise while it is added to those in fp32."""
    model, number = shape.model, shape.number
    waits = model.is_tied or shape.is_sharded
    added = 0 if waits or number == shape.state.gradients else shape.state.gradients
    return (number + added) * model.table_parameters


def _at_reduced_head(shape: StepShape) -> Bytes:
    """The head's own unit: its gradients are copied to be reduced."""
    if not shape.ends_apart:
        return {}
    table = shape.model.table_parameters
    copied = (shape.number + shape.state.reduce) * table
    passing = _in_passes(shape, is_head_done=True)
    return {
        **passing,
        "gathered weights": passing["gathered weights"] + _gathered_ahead(shape),
        **gradient_parts(shape, None if shape.has_gradients else 0),
        "activations": _kept_in_layers(shape, shape.model.layers),
        "reduced gradients": max(copied, _reduced(shape, table)),
    }


def _at_layer(shape: StepShape, done: int) -> Bytes:
    """The backward pass of a layer, after that of `done` others."""
    model, number, tokens = shape.model, shape.number, shape.tokens
    left = model.layers - done
    activations = _kept_in_layers(shape, left)
    if left <= shape.recomputed:
        activations += tokens * shape.kept.layer
    # Gradients of the layer's own activations: of its output, and of the widest part inside.
    flowing = tokens * number * (2 * model.hidden + 3 * model.inner)
    layer, waiting = model.layer_parameters, _waiting_of_root(shape)
    ready = done * layer + (0 if waiting else model.table_parameters)
    parts = {
        **_in_passes(shape, is_head_done=True),
        **gradient_parts(shape, None if shape.has_gradients else ready),
        "activations": activations,
        "gradients of activations": flowing,
        MICRO_GRADIENTS: waiting + number * layer,
    }
    if not shape.is_sharded:
        return parts
    # The layer's weights are gathered, and the next ones' on their way; its gradients are copied to
    # be reduced while those of the layer before it may still be on the way.
    parts["gathered weights"] += 2 * number * layer
    parts["reduced gradients"] = 0
    reduced = _reduced(shape, layer)
    if reduced > flowing + number * layer + tokens * shape.kept.layer:
        # Then all of the layer's activations are gone.
        parts["activations"] = _kept_in_layers(shape, left - 1)
        parts["gathered weights"] -= number * layer
        parts["gradients of activations"] = 0
        parts[MICRO_GRADIENTS] = waiting
        parts["reduced gradients"] = reduced
    return parts


def _at_recomputed(shape: StepShape) -> dict[str, Bytes]:
    """The backward pass of the first layer to be recomputed, if others come before it."""
    done = shape.model.layers - shape.recomputed
    if not 0 < done < shape.model.layers:
        return {}
    return {"in the backward pass of the last recomputed layer": _at_layer(shape, done)}


def _waiting_of_root(shape: StepShape) -> int:
    """Gradients of the output head that wait for the end of the backward pass."""
    waits = shape.model.is_tied or (shape.is_sharded and not shape.ends_apart)
    return shape.number * shape.model.table_parameters if waits else 0


def _reduced(shape: StepShape, parameters: int) -> int:
    """Buffers of a reduce-scatter. gloo makes a copy of what it is given."""
    whole = shape.state.reduce * parameters
    return whole * (1 if shape.on_gpu else 2) + divided(whole, shape.shards)


def _at_end(shape: StepShape) -> Bytes:
    """All gradients are there, and those of the table of tokens are added up."""
    model, number = shape.model, shape.number
    table = model.table_parameters
    if shape.is_sharded:
        last = table if shape.ends_apart else shape.root_parameters
        return {
            **_in_passes(shape, is_head_done=True),
            **gradient_parts(shape, None if shape.has_gradients else shape.parameters - last),
            "reduced gradients": _reduced(shape, last),
        }
    # Tied: that of the head, that of the table, and their sum. Then it is added in fp32.
    flowing = number * (3 if model.is_tied else 1) * table
    if number != shape.state.gradients and not model.is_tied:
        flowing += shape.state.gradients * table
    ready = shape.parameters - (0 if shape.has_gradients else table)
    return {
        **_in_passes(shape),
        **gradient_parts(shape, ready),
        MICRO_GRADIENTS: flowing,
    }


def _at_update(shape: StepShape) -> Bytes:
    # LAMB: both corrected averages, the root, the denominator and the update of one tensor.
    temporary = 5 * 4 * divided(largest_part(shape), shape.shards) if shape.uses_lamb else 0
    return {**state_parts(shape), **gradient_parts(shape), "optimizer's temporaries": temporary}


def _distilled_logits_bytes(precision: Precision) -> int:
    """Kept of the student's: two log-softmaxes and the teacher's probabilities; and gradients."""
    return 24 if precision == "fp32" else 26


def offloaded_bytes(shape: StepShape) -> int:
    """Of pinned memory, whose pieces torch rounds up to a power of two."""
    piece = shape.tokens * shape.kept.block_input
    return (1 << (piece - 1).bit_length()) * shape.recomputed if shape.offloads else 0


def divided(size: int, shards: int) -> int:
    return -(-size // shards)
