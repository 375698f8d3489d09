"""The loss over a vocabulary, computed inside the output head, some rows at a time.

The logits of a micro-batch in fp32, their log-softmax and its gradient are the largest tensors of
a step where the vocabulary is large. Here the logits of a few rows at a time become their losses
and their share of the gradients at once, and are gone. The products are those of the plain loss:
none is computed twice. The head's own `forward` does this, since the model has the weight at hand
then, also where FSDP2 gathers it for that call only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from headway.train.batches import IGNORED, Batch
from headway.train.packed_sequences import not_packed

Rows = Callable[[int, int], int]
"""Rows of a chunk, for a number of tokens and a vocabulary."""


def loss_in_head(model: nn.Module, batch: Batch, rows: Rows) -> torch.Tensor | None:
    """The summed cross-entropy, with `rows` to a chunk. None if the model does something else with
    its logits than to return them."""
    head = _linear_head(model)
    if head is None:
        return None
    with _computing_loss(head, batch.targets, rows) as losses, not_packed():
        output = model(batch.inputs)
    logits = getattr(output, "logits", output)
    if not losses or logits is not losses[-1]:
        return None
    # By what the model returned: FSDP2 has hooks on it, which begin the backward pass.
    total: torch.Tensor = logits.sum()
    return total


def _linear_head(model: nn.Module) -> nn.Linear | None:
    found = getattr(model, "get_output_embeddings", lambda: None)()
    # FSDP2 gives a unit a class of its own, with the same forward.
    is_linear = isinstance(found, nn.Linear) and type(found).forward is nn.Linear.forward
    return found if is_linear else None


@contextmanager
def _computing_loss(
    head: nn.Linear, targets: torch.Tensor, rows: Rows
) -> Iterator[list[torch.Tensor]]:
    """Meanwhile the head returns the summed loss in place of logits: one number, of three
    dimensions as logits have, so that a model may scale it or add to it. It is in the list."""
    losses: list[torch.Tensor] = []

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        if hidden.shape[:-1] != targets.shape:
            return F.linear(hidden, head.weight, head.bias)
        chunk = rows(targets.numel(), head.weight.shape[0])
        needs_gradients = torch.is_grad_enabled()
        loss: torch.Tensor = _SummedLoss.apply(
            hidden, head.weight, head.bias, targets, chunk, needs_gradients
        )
        losses.append(loss)
        return loss

    head.__dict__["forward"] = forward  # before the class's own
    try:
        yield losses
    finally:
        del head.__dict__["forward"]


class _SummedLoss(torch.autograd.Function):
    """Gradients are computed in the forward pass, while the logits are there."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        rows: int,
        needs_gradients: bool,
    ) -> torch.Tensor:
        kind = hidden.device.type
        is_cast = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if is_cast else weight.dtype
        needed = [needs_gradients and needs for needs in ctx.needs_input_grad[:3]]
        # Here it would cast each operand again for each chunk, and sums to bf16.
        with torch.autocast(kind, enabled=False) if is_cast else nullcontext():
            cast = (weight.to(dtype), None if bias is None else bias.to(dtype))
            total, gradients = _summed_loss(hidden, *cast, targets, rows, needed)
        ctx.gradients = [
            None if gradient is None or like is None else gradient.to(like.dtype)
            for gradient, like in zip(gradients, (hidden, weight, bias), strict=True)
        ]
        return total  # of three dimensions, and no view: FSDP2 warns of one

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: torch.Tensor) -> Any:
        gradients, ctx.gradients = ctx.gradients, None
        assert gradients is not None, "there is one backward pass"
        scaled = (None if one is None else one.mul_(scale.view(())) for one in gradients)
        return (*scaled, None, None, None)


def _summed_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    rows: int,
    needed: list[bool],
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """The loss, and those gradients of hidden, weight and bias that are needed."""
    inputs, wanted = hidden.flatten(0, -2), targets.flatten()
    is_whole = rows == len(wanted)
    total = torch.zeros((1, 1, 1), dtype=torch.float32, device=hidden.device)
    of_hidden = torch.empty_like(inputs, dtype=weight.dtype) if needed[0] else None
    of_weight = of_bias = None
    for first in range(0, len(wanted), rows):
        part = slice(first, first + rows)
        some = inputs[part].to(weight.dtype)
        loss, gradient = _loss_of_rows(F.linear(some, weight, bias).float(), wanted[part])
        total += loss
        if not any(needed):
            continue
        gradient = gradient.to(weight.dtype)  # the fp32 one is gone before the products
        if of_hidden is not None:
            torch.mm(gradient, weight, out=of_hidden[part])
        if needed[1]:
            of_weight = _added(of_weight, gradient, some, is_whole)
        if needed[2]:
            sums = gradient.sum(0, dtype=torch.float32)
            of_bias = sums if of_bias is None else of_bias.add_(sums)
        del gradient  # or it would be there beside the next logits
    return total, [None if of_hidden is None else of_hidden.view_as(hidden), of_weight, of_bias]


def _loss_of_rows(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The summed loss of logits in fp32, and its gradient, in their place: there is no second
    tensor of their size."""
    counts = (targets != IGNORED).unsqueeze(1)
    place = targets.clamp_min(0).unsqueeze(1)
    logits -= logits.amax(1, keepdim=True)
    own = logits.gather(1, place)
    sums = logits.exp_().sum(1, keepdim=True)
    loss = (sums.log() - own).masked_fill_(~counts, 0.0).sum()
    gradient = logits.mul_(counts / sums)
    # Each row has one place: unlike scatter_add, this has one order on GPUs.
    gradient.scatter_(1, place, gradient.gather(1, place) - counts.float())
    return loss, gradient


def _added(
    total: torch.Tensor | None, gradient: torch.Tensor, inputs: torch.Tensor, is_whole: bool
) -> torch.Tensor:
    """`total` with the weight's gradient of some rows. The sum is in fp32: in bf16 each addition
    would lose what is small beside the sum."""
    if total is None:
        product = gradient.t() @ inputs
        return product if is_whole else product.float()
    if gradient.dtype == total.dtype:
        return total.addmm_(gradient.t(), inputs)
    return total.add_(gradient.t() @ inputs)
