"""A model, a loss and metrics of one's own, as named in run.yaml."""

import torch
from network import Network
from torch import nn
from torch.nn import functional as F

from headway import IGNORED, Batch, Loss

BALANCE = 0.01


def build(**config: float) -> tuple[nn.Module, list[nn.Module]]:
    """model.call: the network, and the blocks it is sharded, recomputed and compiled by."""
    network = Network(**config)
    return network, list(network.blocks)


def loss(model: nn.Module, batch: Batch) -> Loss:
    """objective.call: next token, and an auxiliary term that keeps the experts equally busy."""
    logits, routes = model(batch.inputs, with_routes=True)
    counted = batch.targets != IGNORED  # False in padding rows
    count = counted.sum()
    text = F.cross_entropy(
        logits.flatten(0, 1).float(),
        batch.targets.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )
    mean = torch.stack([imbalance(one, counted) for one in routes]).mean()
    balance = mean * count  # a mean of the micro-batch, weighted by its targets: now a sum
    return Loss(text + BALANCE * balance, count, {"loss_text": text, "balance": balance})


def imbalance(probabilities: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Switch Transformer's: 1 if all experts get equally many tokens, their number if one gets all.
    Padding is left out; a micro-batch of padding alone gives 0."""
    experts, count = probabilities.shape[-1], counted.sum().clamp(min=1)
    chosen = F.one_hot(probabilities.argmax(dim=-1), experts) * counted.unsqueeze(-1)
    share = chosen.sum(dim=(0, 1)) / count
    probability = (probabilities * counted.unsqueeze(-1)).sum(dim=(0, 1)) / count
    return experts * (share * probability).sum()


def metrics(model: nn.Module, batch: Batch) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """evaluation.metrics.call: how often the right token is the first, or among the first five."""
    best = model(batch.inputs).topk(5, dim=-1).indices
    counted = batch.targets != IGNORED
    right = (best == batch.targets.unsqueeze(-1)) & counted.unsqueeze(-1)
    return {
        "accuracy": (right[..., 0].sum(), counted.sum()),
        "accuracy_top5": (right.any(dim=-1).sum(), counted.sum()),
    }
