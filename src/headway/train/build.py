"""A worker's model, optimizer and data, made from the resolved run."""

from __future__ import annotations

from pathlib import Path

from torch.distributed.fsdp import FSDPModule

from headway.data.reading.token_set import ReadOptions
from headway.errors import BadInput
from headway.plan.train_length import num_steps
from headway.spec.resolve import Resolved, recomputed_blocks
from headway.spec.run_file import ModelConfig
from headway.state.user_code import make_importable
from headway.train.export import trained_elsewhere
from headway.train.feed import Feed, open_feed
from headway.train.fsdp import parameters_by_unit, shard_model
from headway.train.gradient_all_reduce import GradientReducer
from headway.train.initial_weights import materialize
from headway.train.loss_guard import LossGuard
from headway.train.loss_rules import StillBuffers
from headway.train.models import BuiltModel, build_model, compile_blocks
from headway.train.objectives import make_objective
from headway.train.optim import make_optimizer
from headway.train.own_results import LossFunction
from headway.train.precision import LossScale
from headway.train.recomputed_blocks import recompute_blocks
from headway.train.step import Training
from headway.train.weight_copies import WeightCopies, cast_inputs
from headway.train.worker_log import log_line
from headway.train.world import RankPlacement


def build(
    resolved: Resolved, placement: RankPlacement, reading: ReadOptions
) -> tuple[Training, BuiltModel]:
    """Training at step 0. Its model may have memory without values until `fill_weights` is called,
    or a checkpoint is loaded. COLLECTIVE when the model is sharded."""
    run = resolved.run
    assert run.model is not None
    make_importable(Path(resolved.folder, run.code.path) if run.code else None)
    feed = open_feed(resolved, resolved.train_set, placement.device, reading, log_line)
    built = _network(run.model, resolved, feed)
    teacher = None
    if run.objective.teacher is not None:
        teacher = _network(run.objective.teacher, resolved, feed)
        _put_teacher(teacher, placement)
    _put(built, resolved, placement)
    training = Training(
        resolved=resolved,
        total_steps=_total_steps(resolved, feed),
        model=built.module,
        optimizer=make_optimizer(run.optimizer, built.module),
        objective=_objective(resolved, teacher),
        feed=feed,
        scale=LossScale(run.precision),
        guard=LossGuard(run.guard),
        gradient_reducer=GradientReducer(parameters_by_unit(built.module)),
        copies=WeightCopies(
            built.module, run.precision, is_sharded=placement.shard_mesh is not None
        ),
    )
    return training, built


def _objective(resolved: Resolved, teacher: BuiltModel | None) -> LossFunction:
    run = resolved.run
    objective = make_objective(
        run.objective, teacher.module if teacher else None, in_chunks=resolved.loss_in_chunks
    )
    assert run.model is not None
    return objective if run.model.call is None else StillBuffers(objective, run.model.call)


def _network(model: ModelConfig, resolved: Resolved, feed: Feed) -> BuiltModel:
    trained = None
    if model.from_ is not None and "@" in model.from_:
        trained = trained_elsewhere(model.from_, Path(resolved.folder), resolved.run.seed)
    return build_model(model, resolved.run.objective, resolved, feed.set, trained)


def _put(built: BuiltModel, resolved: Resolved, placement: RankPlacement) -> None:
    """COLLECTIVE when the model is sharded."""
    if built.weights is None:
        built.module.to(placement.device)
    built.module.train()
    cast_inputs(built, resolved.run.precision, placement)
    # In this order: a compiled block contains its recomputation, a shard unit contains both.
    blocks = built.blocks[: recomputed_blocks(resolved.checkpoint_activations)]
    recompute_blocks(blocks, offload=resolved.run.memory.offload == "activations")
    if resolved.run.memory.compile:
        compile_blocks(built)
    if placement.shard_mesh is not None:
        shard_model(built, placement, resolved.run.precision)
    _materialize(built, placement)


def _put_teacher(teacher: BuiltModel, placement: RankPlacement) -> None:
    """COLLECTIVE when the model is sharded: then its teacher is, too. In fp32: autocast casts its
    weights as it does those of a whole one."""
    if teacher.weights is None:
        teacher.module.to(placement.device)
    teacher.module.requires_grad_(False)
    if placement.shard_mesh is not None:
        shard_model(teacher, placement, "fp32")
        assert isinstance(teacher.module, FSDPModule)
        teacher.module.set_reshard_after_forward(True)
    _materialize(teacher, placement)
    fill_weights(teacher, placement)


def _materialize(built: BuiltModel, placement: RankPlacement) -> None:
    """After the model was sharded: no rank ever holds more than its rows and one part of it."""
    if built.weights is not None:
        materialize(built.module, placement.device)
        built.weights.fill_buffers(built.module)


def fill_weights(built: BuiltModel, placement: RankPlacement) -> None:
    """The weights that a run starts with, the same on every worker. COLLECTIVE in the domain when
    the model is sharded. A run that resumes does without: it may take as long as restoring."""
    if built.weights is not None:
        built.weights.fill(built.module, placement)


def _total_steps(resolved: Resolved, feed: Feed) -> int:
    length = resolved.run.train_for
    if length.unit == "epochs" and feed.epoch_samples is None:
        raise BadInput(
            f"train_for: {length}: an epoch of {feed.set.location} has no known length: the set is "
            "trained on while it is being prepared",
            "give it in tokens or steps",
        )
    return num_steps(
        length.unit,
        length.amount,
        resolved.global_batch,
        resolved.run.data.sequence_length,
        feed.epoch_samples,
    )
