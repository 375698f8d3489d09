"""The shipped table of model fields is that of the transformers that is installed."""

from __future__ import annotations

import json
from importlib import resources

import pytest
import transformers
from transformers.models.auto import modeling_auto

from headway.plan.model_fields import TABLE, field_problems, model_types, transformers_version
from tools.config_table import describe_type, table_text

REMAKE = "python -m tools.config_table"


def test_it_is_of_the_locked_version() -> None:
    assert transformers_version() == transformers.__version__, REMAKE
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    types = model_types()
    assert {name for name, one in types.items() if one.causal} == set(causal), REMAKE
    assert {name for name, one in types.items() if one.masked} == set(masked), REMAKE


def test_it_has_one_model_type_a_line() -> None:
    text = (resources.files("headway.plan") / TABLE).read_text("utf-8")
    assert text == table_text(json.loads(text)), REMAKE
    lines = text.splitlines()
    for name in model_types():
        assert sum(line.startswith(f'"{name}":') for line in lines) == 1, name


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "qwen3", "mixtral", "gpt_neox", "opt"])
def test_fields_aliases_and_defaults(name: str) -> None:
    told, made = model_types()[name], describe_type(name)
    assert dict(told.fields) == made["fields"]
    assert dict(told.aliases) == made["aliases"]
    assert dict(told.defaults) == made["defaults"]


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "qwen3"])
def test_a_types_own_defaults_are_accepted(name: str) -> None:
    kind = transformers.CONFIG_MAPPING[name]
    config = {
        field: value for field, value in kind().to_dict().items() if field in kind.__annotations__
    }
    assert config
    assert list(field_problems(model_types()[name], config)) == []
