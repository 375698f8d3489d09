"""A small mixture of experts: each token goes to the one expert that its router prefers."""

import torch
from torch import nn
from torch.nn import functional as F


class Experts(nn.Module):
    """Feed-forward networks side by side, and the router that chooses one for each token."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the experts add, and the router's probabilities (rows, length, experts)."""
        probabilities = self.router(x).softmax(dim=-1)
        highest, chosen = probabilities.max(dim=-1)
        added = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            here = chosen == number  # may be none: then the expert gets zero rows
            added[here] = expert(x[here])
        return added * highest.unsqueeze(-1), probabilities


class Block(nn.Module):
    """Causal attention and experts, each added to what came in."""

    def __init__(self, width: int, heads: int, experts: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.before_experts = nn.LayerNorm(width)
        self.experts = Experts(width, experts)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
        added, probabilities = self.experts(self.before_experts(x))
        return x + F.dropout(added, self.dropout, self.training), probabilities


class Network(nn.Module):
    def __init__(
        self,
        vocab: int,
        width: int,
        layers: int,
        heads: int,
        experts: int,
        positions: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads, experts, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(
        self, ids: torch.Tensor, with_routes: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits; for the loss also each block's router probabilities. They are returned, not kept
        in the module: a block may be computed twice (activation checkpointing)."""
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        routes = []
        for block in self.blocks:
            x, probabilities = block(x)
            routes.append(probabilities)
        logits = self.head(self.norm(x))
        return (logits, routes) if with_routes else logits
