"""Networks of transformers, real but for their size, and a micro-batch for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from headway.train.batches import IGNORED, Batch

ROWS, LENGTH, VOCABULARY = 2, 16, 96
GATED: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_head": 4, "n_positions": LENGTH},
    "bert": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "max_position_embeddings": LENGTH,
    },
    "llama": {**GATED, "attention_dropout": 0.1},
    "qwen3": {**GATED, "head_dim": 8, "tie_word_embeddings": True},
}


def tiny_model(type: str, num_layers: int = 2, **config: Any) -> nn.Module:
    """The same weights at every call; dropout where the type has it."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    kind: Any = AutoModelForMaskedLM if type == "bert" else AutoModelForCausalLM
    settings = {"vocab_size": VOCABULARY, **CONFIGS.get(type, GATED), **config}
    made = AutoConfig.for_model(
        type,
        num_hidden_layers=num_layers,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        **settings,
    )
    torch.manual_seed(1)
    model: Any = kind.from_config(made, attn_implementation="sdpa", dtype=torch.float32)
    model.config.use_cache = False
    trained: nn.Module = model.train()
    return trained


def tiny_batch(rows: int = ROWS, vocabulary: int = VOCABULARY) -> Batch:
    """With targets that do not count."""
    tokens = torch.arange(rows * (LENGTH + 1)).mul(37).remainder(vocabulary).view(rows, -1)
    targets = tokens[:, 1:].clone()
    targets[0, 3:6] = IGNORED
    return Batch(tokens[:, :-1].contiguous(), targets, torch.ones(rows, dtype=torch.bool), seed=7)
