"""Our counts against transformers' own modules, built on the meta device (without memory)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import headway.spec
from headway.errors import BadInput
from headway.plan import model_size as size_module
from headway.plan.model_size import flops_per_token, model_size

# Importing transformers costs about ten seconds: once, here, and in no other unit test of plan.
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
Conv1D = pytest.importorskip("transformers.pytorch_utils").Conv1D

PRESETS = Path(headway.spec.__file__).parent / "presets"


def preset_models() -> list[Any]:
    found = []
    for path in sorted(PRESETS.glob("*.yaml")):
        model = yaml.safe_load(path.read_text())["model"]
        found.append(pytest.param(model["type"], model["config"], id=path.stem))
    assert len(found) >= 13
    return found


GPT2_SMALL = {"vocab_size": 101, "n_positions": 33, "n_embd": 24, "n_layer": 3, "n_head": 2}
LLAMA_SMALL = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 35,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
}
BERT_SMALL = {
    "vocab_size": 89,
    "hidden_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 31,
    "max_position_embeddings": 17,
}
QWEN3_SMALL = {**LLAMA_SMALL, "num_key_value_heads": 3, "head_dim": 14}

ODD_SHAPES = [
    ("gpt2", GPT2_SMALL),
    ("gpt2", {**GPT2_SMALL, "n_inner": 37}),
    ("gpt2", {**GPT2_SMALL, "n_inner": None, "tie_word_embeddings": False}),
    ("gpt2", {"hidden_size": 36, "num_hidden_layers": 1, "num_attention_heads": 3}),
    ("llama", LLAMA_SMALL),
    ("llama", {**LLAMA_SMALL, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    ("llama", {**LLAMA_SMALL, "num_key_value_heads": 1, "head_dim": 10}),
    ("llama", {**LLAMA_SMALL, "attention_bias": True, "num_key_value_heads": 3}),
    ("llama", {**LLAMA_SMALL, "mlp_bias": True, "head_dim": None, "num_key_value_heads": None}),
    ("bert", BERT_SMALL),
    ("bert", {**BERT_SMALL, "type_vocab_size": 1}),
    ("bert", {**BERT_SMALL, "tie_word_embeddings": False}),
    ("qwen3", QWEN3_SMALL),
    ("qwen3", {**QWEN3_SMALL, "tie_word_embeddings": True}),
    ("qwen3", {**QWEN3_SMALL, "num_key_value_heads": None, "attention_bias": True}),
    ("gpt2", {}),
    ("llama", {}),
    ("bert", {}),
    ("qwen3", {}),
]


def built(type: str, config: dict[str, object], device: str = "meta", **options: str) -> Any:
    resolved = transformers.AutoConfig.for_model(type, **config)
    head = "AutoModelForMaskedLM" if type == "bert" else "AutoModelForCausalLM"
    with torch.device(device):
        return getattr(transformers, head).from_config(resolved, **options)


@pytest.mark.parametrize(("type", "config"), [*preset_models(), *ODD_SHAPES])
def test_counts_equal_what_transformers_builds(type: str, config: dict[str, object]) -> None:
    size = model_size(type, config)
    assert size is not None
    model = built(type, config)
    # The trainer asks with the built model's complete config.
    assert model_size(type, model.config.to_dict()) == size
    # parameters() yields a tied tensor once.
    assert size.parameters == sum(tensor.numel() for tensor in model.parameters())
    # Every matrix product with weights is one of these two modules; a tied head is one as well.
    matrices = [m.weight for m in model.modules() if isinstance(m, (torch.nn.Linear, Conv1D))]
    assert size.matmul_parameters == sum(weight.numel() for weight in matrices)
    tables = [m.weight for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    multiplied = {id(weight) for weight in matrices}
    looked_up = sum(weight.numel() for weight in tables if id(weight) not in multiplied)
    assert size.embedding_parameters == looked_up
    assert size.num_layers == model.config.num_hidden_layers
    assert size.hidden == model.config.hidden_size
    head_dim = getattr(model.config, "head_dim", None)
    heads = model.config.num_attention_heads
    assert size.attention_width == heads * (head_dim or size.hidden // heads)


@pytest.mark.parametrize("type", ["gpt2", "llama", "bert", "qwen3"])
def test_the_table_of_defaults_is_that_of_transformers(type: str) -> None:
    table = getattr(size_module, f"{type.upper()}_DEFAULTS")
    fields = type_of_config(type).__dataclass_fields__
    assert {key: fields[key].default for key in table} == dict(table)


def type_of_config(type: str) -> Any:
    return transformers.AutoConfig.for_model(type).__class__


@pytest.mark.parametrize(
    ("type", "config"),
    [("gpt2", GPT2_SMALL), ("llama", LLAMA_SMALL), ("bert", BERT_SMALL), ("qwen3", QWEN3_SMALL)],
)
def test_operations_are_what_torch_counts(type: str, config: dict[str, object]) -> None:
    """torch's own count of every matrix product in a real forward and backward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    size = model_size(type, config)
    assert size is not None
    model = built(type, config, device="cpu", attn_implementation="eager")
    batch, length = 2, 16
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.zeros((batch, length), dtype=torch.long)).logits.sum().backward()
    assert counter.get_total_flops() == batch * length * flops_per_token(size, length)


def test_flops_of_a_7b_model_by_hand() -> None:
    size = model_size("llama", {"max_position_embeddings": 4096})
    assert size is not None
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
    assert flops_per_token(size, 4096) == 6 * matrices + 12 * 32 * 4096 * 4096


def test_unknown_types_and_unknown_parts_are_not_guessed() -> None:
    assert model_size("mamba", {}) is None
    assert model_size("gpt2", {"add_cross_attention": True}) is None
    assert model_size("bert", {"add_cross_attention": True}) is None


@pytest.mark.parametrize(
    ("type", "config", "named"),
    [
        ("gpt2", {"n_embd": 100, "n_head": 12}, "n_embd"),
        ("gpt2", {"n_layer": 0}, "n_layer"),
        ("llama", {"hidden_size": "4096"}, "hidden_size"),
        ("llama", {"vocab_size": None}, "vocab_size"),
        ("llama", {"num_attention_heads": 32, "num_key_value_heads": 5}, "num_key_value_heads"),
        ("bert", {"hidden_size": 770}, "hidden_size"),
        ("qwen3", {"num_hidden_layers": True}, "num_hidden_layers"),
        ("qwen3", {"tie_word_embeddings": 1}, "tie_word_embeddings"),
    ],
)
def test_a_shape_that_cannot_be_built_is_the_users_to_mend(
    type: str, config: dict[str, object], named: str
) -> None:
    with pytest.raises(BadInput, match=named):
        model_size(type, config)
