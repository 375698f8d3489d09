"""Building a network: slips in the run file have a name."""

from __future__ import annotations

import pytest
from torch import nn

from headway.errors import BadInput
from headway.spec.run import Model, Objective
from headway.train.models import _from_scratch, find_blocks, padded_vocabulary


class Manifest:
    """Of a set with 400 tokens; only what building looks at."""

    vocab_size = 400

    class special_ids:
        end_of_text = 0


def scratch(**config: object) -> nn.Module:
    model = Model(type="gpt2", config=config)
    return _from_scratch(model, Objective(type="causal"), Manifest())  # type: ignore[arg-type]


def test_a_misspelt_field_is_refused_with_the_right_one() -> None:
    with pytest.raises(BadInput, match="gpt2 has no field 'n_layers'") as caught:
        scratch(n_layers=2)
    assert "did you mean n_layer?" in str(caught.value)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(BadInput, match=r"model\.type gtp2"):
        _from_scratch(Model(type="gtp2"), Objective(type="causal"), Manifest())  # type: ignore[arg-type]


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
