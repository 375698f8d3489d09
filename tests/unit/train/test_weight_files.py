"""A model from files in the HF format, read by ranges, is what transformers would load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from headway.train.initial_weights import NotByParts, materialize
from headway.train.models import _by_ranges
from headway.train.world import RankPlacement

CPU = torch.device("cpu")
LLAMA = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 96}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def gpt2_config() -> GPT2Config:
    return GPT2Config(n_layer=2, n_head=1, n_embd=16, vocab_size=96, n_positions=8, **TOKENS)


def bert_config() -> BertConfig:
    shape = {"hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 24}
    return BertConfig(num_hidden_layers=2, vocab_size=96, **shape)


def assert_as_transformers_loads_it(folder: Path, kind: Any = AutoModelForCausalLM) -> Any:
    network = _by_ranges(kind, str(folder), None, {}, seed=3)
    materialize(network.module, CPU)
    for tensor in (*network.module.parameters(), *network.module.buffers()):
        tensor.data.fill_(77)  # what memory happens to hold
    assert network.weights is not None
    network.weights.fill_buffers(network.module)
    network.weights.fill(network.module, RankPlacement(CPU))
    theirs = kind.from_pretrained(folder, dtype=torch.float32)
    assert network.module.state_dict().keys() == theirs.state_dict().keys()
    for name, tensor in theirs.state_dict().items():
        found = network.module.state_dict()[name]
        assert found.dtype == tensor.dtype, name
        assert torch.equal(found, tensor), name
    for name, buffer in theirs.named_buffers():
        assert torch.equal(network.module.get_buffer(name), buffer), name
    return network.module


def test_one_file_with_tied_weights(tmp_path: Path) -> None:
    GPT2LMHeadModel(gpt2_config()).save_pretrained(tmp_path)
    module = assert_as_transformers_loads_it(tmp_path)
    assert module.lm_head.weight is module.transformer.wte.weight


def test_several_files_in_bf16(tmp_path: Path) -> None:
    model = LlamaForCausalLM(LlamaConfig(**LLAMA, **HEADS)).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert_as_transformers_loads_it(tmp_path)


def test_a_masked_model(tmp_path: Path) -> None:
    BertForMaskedLM(bert_config()).save_pretrained(tmp_path)
    assert_as_transformers_loads_it(tmp_path, AutoModelForMaskedLM)


def test_the_hubs_gpt2_lacks_the_prefix_of_its_names(tmp_path: Path) -> None:
    GPT2Model(gpt2_config()).save_pretrained(tmp_path)
    assert "wte.weight" in load_file(tmp_path / "model.safetensors")
    assert_as_transformers_loads_it(tmp_path)


def test_names_of_older_versions(tmp_path: Path) -> None:
    BertForMaskedLM(bert_config()).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma"): t
        for name, t in load_file(file).items()
    }
    old = {name.replace("LayerNorm.bias", "LayerNorm.beta"): t for name, t in old.items()}
    save_file(old, file, metadata={"format": "pt"})
    assert_as_transformers_loads_it(tmp_path, AutoModelForMaskedLM)


def refused(folder: Path, says: str, kind: Any = AutoModelForCausalLM) -> None:
    with pytest.raises(NotByParts, match=says):
        _by_ranges(kind, str(folder), None, {}, seed=3)


def test_what_needs_more_than_reading_is_left_to_transformers(tmp_path: Path) -> None:
    BertModel(bert_config()).save_pretrained(tmp_path / "no-head")
    refused(tmp_path / "no-head", "its files lack cls", AutoModelForMaskedLM)

    untied = LlamaForCausalLM(LlamaConfig(**LLAMA, **HEADS, tie_word_embeddings=False))
    untied.save_pretrained(tmp_path / "untied")
    config = json.loads((tmp_path / "untied" / "config.json").read_text())
    (tmp_path / "untied" / "config.json").write_text(
        json.dumps({**config, "tie_word_embeddings": True})
    )
    refused(tmp_path / "untied", r"ties lm_head\.weight, and its files have it")

    GPT2LMHeadModel(gpt2_config()).save_pretrained(tmp_path / "shape")
    config = json.loads((tmp_path / "shape" / "config.json").read_text())
    (tmp_path / "shape" / "config.json").write_text(json.dumps({**config, "vocab_size": 128}))
    refused(tmp_path / "shape", "another shape of transformer")

    experts = MixtralForCausalLM(MixtralConfig(**LLAMA, **HEADS, num_local_experts=2))
    experts.save_pretrained(tmp_path / "experts")
    refused(tmp_path / "experts", "transformers computes")
