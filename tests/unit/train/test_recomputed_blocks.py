"""Recomputing some of the blocks: which they are, and that no bit of a gradient depends on it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from headway.train.models import find_blocks
from headway.train.objectives import token_loss
from headway.train.recomputed_blocks import recompute_blocks
from support.tiny_models import tiny_batch, tiny_model

BLOCKS = 3


@pytest.mark.parametrize("type", ["gpt2", "llama"])
def test_gradients_are_the_same_bit_for_bit(type: str) -> None:
    plain = gradients(type, 0)
    for blocks in range(1, BLOCKS + 1):
        recomputed = gradients(type, blocks)
        assert recomputed.keys() == plain.keys()
        assert all(torch.equal(recomputed[name], plain[name]) for name in plain)


def gradients(type: str, blocks: int) -> dict[str, torch.Tensor]:
    """With dropout, of the first `blocks` recomputed."""
    model = tiny_model(type, num_layers=BLOCKS)
    passes: Counter[int] = Counter()
    for number, block in enumerate(find_blocks(model)):
        note_passes(block, number, passes)
    recompute_blocks(find_blocks(model)[:blocks])
    torch.manual_seed(5)
    token_loss(model, tiny_batch()).sum.backward()
    assert passes == {number: 2 if number < blocks else 1 for number in range(BLOCKS)}
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def note_passes(block: Any, number: int, passes: Counter[int]) -> None:
    forward = block.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        passes[number] += 1
        return forward(*args, **kwargs)

    block.forward = counted
