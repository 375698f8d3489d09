"""The next token: the same with a cache of keys and values as without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
)

from headway.train.next_token import NextToken

CONTEXT = 12


def gpt2() -> Any:
    return GPT2LMHeadModel(
        GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=40, n_positions=16)
    )


def llama() -> Any:
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 40}
    return LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=2, num_key_value_heads=1))


def mamba() -> Any:
    """Keeps a state of another kind."""
    return MambaForCausalLM(MambaConfig(hidden_size=16, num_hidden_layers=2, vocab_size=40))


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(40, 8), nn.Linear(8, 40)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens).cumsum(1))


@pytest.mark.parametrize("make", [gpt2, llama, mamba, Own])
def test_a_text_that_outgrows_the_context(make: Any) -> None:
    torch.manual_seed(1)
    module = make().eval()
    seen: list[int] = []
    embedding = next(part for part in module.modules() if isinstance(part, nn.Embedding))
    embedding.register_forward_hook(lambda _, args, output: seen.append(args[0].shape[1]))
    predictor, ids = NextToken(module, CONTEXT), [3, 1, 4]
    for _ in range(12):
        logits = predictor.logits([ids])[0]
        read = seen[-1]
        with torch.no_grad():
            output = module(torch.tensor([ids[-CONTEXT:]]))
        expected = getattr(output, "logits", output)[0, -1]
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
        if make in (gpt2, llama) and 3 < len(ids) <= CONTEXT:
            assert read == 1, "only the newest token is computed"
        ids.append(int(logits.argmax()))
