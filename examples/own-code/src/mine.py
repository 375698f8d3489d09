"""A network, a loss and two measures of one's own, as named in run.yaml."""

import torch
from torch import nn
from torch.nn import functional as F

from headway import IGNORED, Batch, Loss


class Block(nn.Module):
    """Causal attention and a feed-forward part, each added to what came in."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.query_key_value(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (
            part.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
            for part in parts
        )
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        x = x + self.output(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.feed_forward(x)


class Network(nn.Module):
    def __init__(
        self, vocab: int, width: int, layers: int, heads: int, positions: int, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(**config: float) -> tuple[nn.Module, list[nn.Module]]:
    """model.call: the network, and the blocks it is sharded, recomputed and compiled by."""
    network = Network(**config)
    return network, list(network.blocks)


def loss(model: nn.Module, batch: Batch) -> Loss:
    """objective.call: next token, and a small pull on the size of the logits (z-loss)."""
    logits = model(batch.inputs).float()
    counted = batch.targets != IGNORED  # False in padding rows
    text = F.cross_entropy(
        logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    size = (logits.logsumexp(dim=-1).square() * counted).sum()
    return Loss(text + 1e-4 * size, counted.sum(), {"loss_text": text, "z": size})


def metrics(model: nn.Module, batch: Batch) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """evaluation.metrics.call: how often the right token is the first, or among the first five."""
    best = model(batch.inputs).topk(5, dim=-1).indices
    counted = batch.targets != IGNORED
    right = (best == batch.targets.unsqueeze(-1)) & counted.unsqueeze(-1)
    return {
        "accuracy": (right[..., 0].sum(), counted.sum()),
        "accuracy_top5": (right.any(dim=-1).sum(), counted.sum()),
    }
