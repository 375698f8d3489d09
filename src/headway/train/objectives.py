"""Objectives, as functions of (model, micro-batch) that return sums and integer counts."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from headway.errors import BadInput
from headway.plan.batch_division import loss_rows
from headway.spec.run_file import ObjectiveConfig
from headway.train.batches import IGNORED, Batch, Loss
from headway.train.device import seed_generators
from headway.train.own_results import LossFunction, own_loss
from headway.train.packed_sequences import not_packed
from headway.train.vocabulary_loss import Rows, loss_in_head

EXTRA = "loss_"
HARD_LOSS = f"{EXTRA}hard"
"""A distillation's own loss on the text, among its extras."""


def make_objective(
    objective: ObjectiveConfig, teacher: nn.Module | None, *, in_chunks: bool = False
) -> LossFunction:
    """`in_chunks`: as `Resolved.loss_in_chunks` has it."""
    if objective.call is not None:
        return own_loss(objective.call)
    if objective.type == "distill":
        assert teacher is not None
        return Distill(objective, teacher)
    return ChunkedTokenLoss() if in_chunks else token_loss


def make_evaluation(objective: ObjectiveConfig, *, in_chunks: bool = False) -> LossFunction:
    """The loss of evaluations: for a distilled student, its own language-model loss."""
    if objective.call is not None:
        return own_loss(objective.call)
    return ChunkedTokenLoss() if in_chunks else token_loss


def logits_of(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    with not_packed():
        output = model(inputs)
    return getattr(output, "logits", output)


def require_logits(logits: Any, inputs: torch.Tensor) -> None:
    """Raises if what a model of the user's own returned for these tokens are no logits."""
    hint = "return (rows, length, vocabulary), or an object with .logits of that shape"
    if not isinstance(logits, torch.Tensor):
        raise BadInput(f"the model returns {type(logits).__name__}, not logits", hint)
    shape, asked = tuple(logits.shape), tuple(inputs.shape)
    if len(shape) != 3 or shape[:2] != asked:
        raise BadInput(
            f"the model returns logits of shape {shape} for tokens of shape {asked}", hint
        )


def summed_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    # In fp32 whatever the precision of the run: a sum over thousands of targets needs the bits.
    return F.cross_entropy(
        logits.flatten(0, -2).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def token_loss(model: nn.Module, batch: Batch) -> Loss:
    """Causal and masked alike: the feed has put the targets where they belong."""
    total = summed_cross_entropy(logits_of(model, batch.inputs), batch.targets)
    return Loss(total, (batch.targets != IGNORED).sum())


class ChunkedTokenLoss:
    """The same as `token_loss`, for models whose logits are what a linear head returns. Others are
    noticed at the first micro-batch, and have the plain loss from then on."""

    def __init__(self, rows: Rows = loss_rows) -> None:
        self._rows = rows
        self._is_plain = False

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        total = None if self._is_plain else loss_in_head(model, batch, self._rows)
        if total is not None:
            return Loss(total, (batch.targets != IGNORED).sum())
        if not self._is_plain:
            self._is_plain = True
            if torch.is_grad_enabled():  # an evaluation has an objective of its own
                logging.getLogger("headway").warning(
                    "the logits of this model are not those of a linear head: the loss is computed "
                    "over those of a whole micro-batch"
                )
            # The dropout of the pass that was in vain must not change that of this one.
            seed_generators(batch.seed, batch.inputs.device)
        return token_loss(model, batch)


class Distill:
    """A student learns a teacher's distribution, the text itself, and the teacher's last states."""

    def __init__(self, objective: ObjectiveConfig, teacher: nn.Module) -> None:
        self.temperature = objective.temperature
        self.weights = objective.weights
        self.teacher = teacher.eval().requires_grad_(False)

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        hidden_wanted = self.weights.hidden > 0
        with not_packed():
            student = model(batch.inputs, output_hidden_states=hidden_wanted)
            with torch.no_grad():
                teacher = self.teacher(batch.inputs, output_hidden_states=hidden_wanted)
        if student.logits.shape != teacher.logits.shape:
            raise BadInput(
                f"student and teacher disagree on the vocabulary: {student.logits.shape[-1]} and "
                f"{teacher.logits.shape[-1]}",
                "distillation needs one tokenizer for both",
            )
        counted = batch.targets != IGNORED
        count = counted.sum()
        parts = {
            "soft": self._soft(student.logits, teacher.logits, counted),
            "hard": summed_cross_entropy(student.logits, batch.targets),
        }
        if hidden_wanted:
            parts["hidden"] = self._hidden(student, teacher, counted)
        total = sum(getattr(self.weights, name) * part for name, part in parts.items())
        assert isinstance(total, torch.Tensor)
        return Loss(total, count, {f"{EXTRA}{name}": part.detach() for name, part in parts.items()})

    def _soft(
        self, student: torch.Tensor, teacher: torch.Tensor, counted: torch.Tensor
    ) -> torch.Tensor:
        by_student = F.log_softmax(student.float() / self.temperature, dim=-1)
        by_teacher = F.log_softmax(teacher.float() / self.temperature, dim=-1)
        divergence = F.kl_div(by_student, by_teacher, reduction="none", log_target=True).sum(-1)
        # Temperature squared keeps the gradient's size when the temperature changes.
        return (divergence * counted).sum() * self.temperature**2

    def _hidden(self, student: Any, teacher: Any, counted: torch.Tensor) -> torch.Tensor:
        own, taught = student.hidden_states[-1].float(), teacher.hidden_states[-1].float()
        if own.shape != taught.shape:
            raise BadInput(
                f"student and teacher have widths {own.shape[-1]} and {taught.shape[-1]}",
                "set objective.weights.hidden to 0",
            )
        return ((1 - F.cosine_similarity(own, taught, dim=-1)) * counted).sum()
