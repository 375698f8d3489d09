"""Building a network: slips in the run file have a name."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from headway.errors import BadInput
from headway.plan.model_size import padded_vocabulary
from headway.spec.run_file import ModelConfig, ObjectiveConfig
from headway.train.models import _from_scratch, find_blocks, find_ends, own_model


class Manifest:
    """Of a set with 400 tokens; only what building looks at."""

    vocab_size = 400

    class special_ids:
        end_of_text = 0


def scratch(**config: object) -> nn.Module:
    model = ModelConfig(type="gpt2", config=config)
    return _from_scratch(model, ObjectiveConfig(type="causal"), Manifest())  # type: ignore[arg-type]


def test_a_misspelt_field_is_refused_with_the_right_one() -> None:
    with pytest.raises(BadInput, match="gpt2 has no field 'n_layers'") as caught:
        scratch(n_layers=2)
    assert "did you mean n_layer?" in str(caught.value)


@pytest.mark.parametrize(
    ("type_", "says", "hint"),
    [
        ("gtp2", "model.type: transformers has no type 'gtp2'", "did you mean gpt2?"),
        ("???", "model.type: transformers has no type '???'", "such as gpt2, llama or bert"),
        ("clip", "model.type: clip has no causal language model", "such as gpt2, llama or bert"),
    ],
)
def test_a_type_that_cannot_be_trained_is_refused_in_a_line(
    type_: str, says: str, hint: str
) -> None:
    with pytest.raises(BadInput) as caught:
        _from_scratch(ModelConfig(type=type_), ObjectiveConfig(type="causal"), Manifest())  # type: ignore[arg-type]
    assert caught.value.message == says
    assert hint in (caught.value.hint or "")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"n_layer": "two"}, "Field 'n_layer' expected int, got str (value: 'two')"),
        ({"n_embd": 10, "n_head": 3}, "`embed_dim` must be divisible by num_heads"),
    ],
)
def test_a_value_that_the_type_does_not_take_is_named(config: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        scratch(**config)
    assert caught.value.message.startswith(f"model.config: gpt2: {says}")


def test_the_vocabulary_is_the_tokenizers_rounded_up() -> None:
    module = scratch(n_layer=1, n_head=1, n_embd=8)
    assert module.config.vocab_size == padded_vocabulary(400) == 448
    assert module.config.eos_token_id == 0
    assert len(find_blocks(module)) == 1


def test_blocks_are_the_longest_list_of_equal_layers() -> None:
    module = nn.ModuleDict(
        {
            "mixed": nn.ModuleList([nn.Linear(1, 1), nn.ReLU(), nn.ReLU()]),
            "layers": nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)]),
        }
    )
    assert find_blocks(module) == list(module["layers"])


def test_a_model_of_ones_own_whose_state_is_more_than_tensors_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first save would fail, hours later."""
    code = "from torch import nn\n\nclass Counting(nn.Linear):\n"
    code += "    def get_extra_state(self):\n        return {'seen': 1}\n"
    (tmp_path / "mine_counting.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    config = {"in_features": 2, "out_features": 2}
    with pytest.raises(BadInput, match="_extra_state in the model's state_dict is dict"):
        own_model(ModelConfig(call="mine_counting:Counting", config=config))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ("nn.Linear(2, 2).bfloat16()", "weight is bfloat16; weights that are trained are kept in"),
        ("nn.Linear(2, 2, device='meta')", "weight is on the meta device and has no values"),
        ("nn.Linear(2, 2).half().requires_grad_(False)", None),
    ],
)
def test_weights_that_would_train_badly_are_refused(
    made: str, says: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from_pretrained returns them, for one: it keeps the dtype of the files."""
    name = f"mine_made_{len(made)}"
    (tmp_path / f"{name}.py").write_text(f"from torch import nn\ndef build(): return {made}\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = ModelConfig(call=f"{name}:build")
    if says is None:
        assert own_model(model).module is not None, "frozen weights may be small"
        return
    with pytest.raises(BadInput, match=says):
        own_model(model)


LLAMA = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


@pytest.mark.parametrize(
    ("type_", "config", "names"),
    [
        ("llama", LLAMA, ["model.embed_tokens", "model.norm", "lm_head"]),
        ("llama", {**LLAMA, "tie_word_embeddings": True}, None),
        (
            "gpt2",
            {"n_layer": 2, "tie_word_embeddings": False},
            ["transformer.wte", "transformer.ln_f", "lm_head"],
        ),
        ("gpt2", {"n_layer": 2}, None),
    ],
)
def test_ends_are_found_where_they_share_no_weights(
    type_: str, config: dict[str, object], names: list[str] | None
) -> None:
    model = ModelConfig(type=type_, config=config)
    module = _from_scratch(model, ObjectiveConfig(type="causal"), Manifest())  # type: ignore[arg-type]
    ends = find_ends(module, find_blocks(module))
    name_of = {inner: name for name, inner in module.named_modules()}
    assert (ends and [name_of[one] for one in (ends.table, *ends.head)]) == names


def test_a_head_whose_bias_is_used_elsewhere_is_no_end_of_its_own() -> None:
    model = ModelConfig(type="gpt2", config={"n_layer": 2, "tie_word_embeddings": False})
    module = _from_scratch(model, ObjectiveConfig(type="causal"), Manifest())  # type: ignore[arg-type]
    module.bias = module.transformer.ln_f.bias
    assert find_ends(module, find_blocks(module)) is None
