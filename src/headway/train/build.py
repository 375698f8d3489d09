"""A worker's model, optimizer and data, made from the resolved run."""

from __future__ import annotations

from pathlib import Path

from headway.data.reading.tokenset import Reading
from headway.errors import BadInput
from headway.plan.length import num_steps
from headway.spec.resolve import Resolved
from headway.spec.run import Model
from headway.state.code import make_importable
from headway.train.copies import Copies, cast_inputs
from headway.train.export import trained_elsewhere
from headway.train.feed import Feed, open_feed
from headway.train.guard import LossGuard
from headway.train.models import Built, build_model, compile_blocks, recompute_blocks
from headway.train.objectives import make_objective
from headway.train.optim import make_optimizer
from headway.train.precision import LossScale
from headway.train.replicate import Gradients
from headway.train.shard import shard_model
from headway.train.step import Training
from headway.train.world import Place


def build(resolved: Resolved, place: Place, reading: Reading) -> tuple[Training, Built]:
    """At step 0, with the same weights on every worker. COLLECTIVE when the model is sharded."""
    run = resolved.run
    assert run.model is not None
    make_importable(Path(resolved.folder, run.code.path) if run.code else None)
    feed = open_feed(resolved, resolved.train_set, place.device, reading)
    built = _network(run.model, resolved, feed)
    teacher = None
    if run.objective.teacher is not None:
        teacher = _network(run.objective.teacher, resolved, feed)
        teacher.module.to(place.device)
    _put(built, resolved, place)
    training = Training(
        resolved=resolved,
        total_steps=_total_steps(resolved, feed),
        model=built.module,
        optimizer=make_optimizer(run.optimizer, built.module),
        objective=make_objective(run.objective, teacher.module if teacher else None),
        feed=feed,
        scale=LossScale(run.precision),
        guard=LossGuard(run.guard),
        gradients=Gradients(list(built.module.parameters())),
        copies=Copies(built.module, run.precision, is_sharded=place.shard_mesh is not None),
    )
    return training, built


def _network(model: Model, resolved: Resolved, feed: Feed) -> Built:
    trained = None
    if model.from_ is not None and "@" in model.from_:
        trained = trained_elsewhere(model.from_, Path(resolved.folder))
    return build_model(model, resolved.run.objective, resolved, feed.set, trained)


def _put(built: Built, resolved: Resolved, place: Place) -> None:
    built.module.to(place.device).train()
    cast_inputs(built, resolved.run.precision, place)
    # In this order: a compiled block contains its recomputation, a shard unit contains both.
    if resolved.checkpoint_activations:
        recompute_blocks(built.blocks)
    if resolved.run.memory.compile:
        compile_blocks(built)
    if place.shard_mesh is not None:
        shard_model(built, place, resolved.run.precision)


def _total_steps(resolved: Resolved, feed: Feed) -> int:
    length = resolved.run.train_for
    if length.unit == "epochs" and feed.epoch_samples is None:
        raise BadInput(
            f"train_for: {length}: nobody knows how long an epoch of {feed.set.location} is: it is "
            "made to be trained on while it is being prepared",
            "say it in tokens or steps",
        )
    return num_steps(
        length.unit,
        length.amount,
        resolved.global_batch,
        resolved.run.data.sequence_length,
        feed.epoch_samples,
    )
