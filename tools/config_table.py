"""Makes plan/model_fields.json: the fields of every model type that transformers can train here.

    python -m tools.config_table

`check` names misspelt fields with it in a second, without torch. It is of the transformers that is
locked in requirements/; a test compares the two.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from importlib import resources
from typing import Any, Literal, get_args, get_origin

from headway.plan.model_fields import TABLE, model_types

KINDS = {int: "int", float: "float", bool: "bool", str: "str", type(None): "null"}
DEFAULTS = ("vocab_size", "max_position_embeddings")


def config_table() -> dict[str, Any]:
    import transformers
    from transformers.models.auto import modeling_auto

    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    masked = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    described = {name: describe_type(name) for name in sorted({*causal, *masked})}
    for name, type_ in described.items():
        type_["causal"], type_["masked"] = name in causal, name in masked
    every = [type_["fields"] for type_ in described.values()]
    common = {
        field: kinds
        for field, kinds in every[0].items()
        if all(fields.get(field) == kinds for fields in every)
    }
    for fields in every:
        for field in common:
            del fields[field]
    return {"transformers": transformers.__version__, "common": common, "types": described}


def describe_type(name: str) -> dict[str, Any]:
    """The fields of a type's config with the kinds of values that each takes, other names for them,
    and defaults that a run is compared with."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[name]
    fields = {field.name: _kinds(field.type) for field in dataclasses.fields(kind)}
    defaults: dict[str, Any] = {}
    try:
        made = kind()
    except StrictDataclassError:
        pass  # its defaults contradict each other
    else:
        fields |= dict.fromkeys(made.to_dict().keys() - fields.keys(), "any")
        defaults = {key: getattr(made, key, None) for key in DEFAULTS}
    return {
        "fields": dict(sorted(fields.items())),
        "aliases": dict(sorted(kind.attribute_map.items())),
        "defaults": {key: value for key, value in defaults.items() if isinstance(value, int)},
    }


def _kinds(hint: Any) -> str:
    """`int|null` and the like; `any` where the kind is not one of JSON's."""
    return "|".join(sorted(set(_each_kind(hint))))


def _each_kind(hint: Any) -> typing.Iterator[str]:
    origin = get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        for one in get_args(hint):
            yield from _each_kind(one)
    elif origin is Literal:
        yield from (KINDS.get(type(value), "any") for value in get_args(hint))
    elif hint in KINDS:
        yield KINDS[hint]
    elif (origin or hint) in (list, tuple):
        yield "list"
    elif (origin or hint) is dict:
        yield "dict"
    else:
        yield "any"


def table_text(table: Mapping[str, Any]) -> str:
    """Return the table as JSON with one model type a line, so that a diff names the types that
    changed."""
    head = [f"{_json(key)}:{_json(table[key])}," for key in ("transformers", "common")]
    types = [f"{_json(name)}:{_json(type_)}" for name, type_ in table["types"].items()]
    return "\n".join(["{", *head, '"types":{', ",\n".join(types), "}}"]) + "\n"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def main() -> None:
    text = table_text(config_table())
    path = resources.files("headway.plan") / TABLE
    with resources.as_file(path) as file:
        file.write_text(text, "utf-8")
    model_types.cache_clear()


if __name__ == "__main__":
    main()
