"""Recomputed blocks on the simulated device, with their inputs there or on the host."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from support.simulated_device import SIM, install

STEPS, BLOCKS = 3, 3


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(torch.relu(self.inner(x))) * mask


def train_both_ways(answers: Any) -> None:
    """Puts, without and with offload: losses and gradients of each step; the number of tensors that
    went to the host, how many of them are pinned, and how many had not arrived when they were
    begun to be copied."""
    with install():
        from headway.train import recomputed_blocks

        found = []
        to_host = recomputed_blocks._to_host
        for offload in (False, True):
            moved: list[torch.Tensor] = []
            late: list[bool] = []

            def noted(
                tensor: torch.Tensor,
                moved: list[torch.Tensor] = moved,
                late: list[bool] = late,
            ) -> Any:
                packed = to_host(tensor)
                if isinstance(packed, tuple):
                    moved.append(packed[1])
                    late.append(bool(packed[1].isnan().all()))
                return packed

            recomputed_blocks._to_host = noted
            numbers = _train(recomputed_blocks.recompute_blocks, offload)
            found.append((numbers, len(moved), sum(map(SIM.is_pinned, moved)), sum(late)))
        answers.put(found)


def _train(recompute_blocks: Any, offload: bool) -> list[list[float]]:
    torch.manual_seed(4)
    SIM.manual_seed(4)
    model = nn.ModuleList([_Block() for _ in range(BLOCKS)]).to("sim")
    recompute_blocks(list(model), offload=offload)
    first = nn.Linear(8, 8).to("sim")
    mask = torch.ones(4, 8).to("sim")
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(5))
    optimizer = torch.optim.SGD([*model.parameters(), *first.parameters()], lr=0.1)
    numbers = []
    for _ in range(STEPS):
        hidden = first(inputs.to("sim"))
        for block in model:
            hidden = block(hidden, mask)
        loss = hidden.square().mean()
        loss.backward()
        gradients = [one.grad.flatten() for one in model.parameters() if one.grad is not None]
        numbers.append([loss.detach(), torch.cat(gradients)])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return [[float(loss), *gradients.tolist()] for loss, gradients in numbers]
