"""Fields of every model type's config, from the table that tools/config_table.py makes."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

TABLE = "model_fields.json"
NEAREST = 3
FAMILIAR = ("llama", "gpt2", "bert", "qwen3", "mixtral")
"""Types whose fields people have in mind."""
WORDS = {
    "int": "a whole number",
    "float": "a number with a decimal point",
    "bool": "true or false",
    "str": "a word",
    "list": "a list",
    "dict": "a mapping",
    "null": "null",
}


@dataclass(frozen=True)
class ModelType:
    name: str
    causal: bool
    masked: bool
    fields: Mapping[str, str]
    """Kinds of values by field: `int|null`; `any` where the table cannot tell."""
    aliases: Mapping[str, str]
    """Other names of fields, and the field that each stands for."""
    defaults: Mapping[str, int]

    def value(self, config: Mapping[str, Any], name: str) -> int | None:
        """A whole number in `config` under any of its names, the last of them if there are several;
        else the type's default."""
        field = self.aliases.get(name, name)
        spellings = {field, *(other for other, of in self.aliases.items() if of == field)}
        found = [value for key, value in config.items() if key in spellings]
        value = found[-1] if found else self.defaults.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class FieldProblem:
    field: str
    problem: str
    hint: str | None
    is_unknown: bool = False
    """Whether the type has no such field; else its value is of the wrong kind."""


@cache
def _table() -> dict[str, Any]:
    text = (resources.files("headway.plan") / TABLE).read_text("utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def transformers_version() -> str:
    """Version that the table was made from."""
    return str(_table()["transformers"])


@cache
def model_types() -> Mapping[str, ModelType]:
    common = _table()["common"]
    return {
        name: ModelType(
            name,
            one["causal"],
            one["masked"],
            {**common, **one["fields"]},
            one["aliases"],
            one["defaults"],
        )
        for name, one in _table()["types"].items()
    }


def nearest_types(name: str) -> list[str]:
    """Names of types that look like it, the most alike first."""
    return difflib.get_close_matches(name.lower(), model_types(), n=NEAREST, cutoff=0.5)


def field_problems(type_: ModelType, config: Mapping[str, Any]) -> Iterator[FieldProblem]:
    """Unknown fields, and values of the wrong kind."""
    known = {*type_.fields, *type_.aliases}
    for field, value in config.items():
        if field not in known:
            hint = _field_hint(type_, field, known)
            yield FieldProblem(field, f"{type_.name} has no field {field!r}", hint, is_unknown=True)
            continue
        kinds = type_.fields.get(type_.aliases.get(field, field), "any").split("|")
        if "any" not in kinds and _kind(value) not in kinds:
            wanted = " or ".join(WORDS[kind] for kind in kinds)
            yield FieldProblem(field, f"{value!r} is not {wanted}", _instead(value, kinds))


def _field_hint(type_: ModelType, field: str, known: set[str]) -> str:
    others = [name for name in FAMILIAR if field in model_types()[name].fields]
    if others:
        return f"{field} is a field of {others[0]}: remove it, or set model.type: {others[0]}"
    near = difflib.get_close_matches(field, sorted(known), n=1)
    return f"did you mean {near[0]}?" if near else f"its fields: {_some(type_)}"


def _kind(value: Any) -> str:
    return {bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "dict"}.get(
        type(value), "null"
    )


def _instead(value: Any, kinds: list[str]) -> str | None:
    """The value in the kind that is wanted, where it is plain which it is."""
    if isinstance(value, int) and not isinstance(value, bool) and "float" in kinds:
        return f"write {float(value)}"
    if isinstance(value, float) and value.is_integer() and "int" in kinds:
        return f"write {int(value)}"
    if isinstance(value, str) and value.strip().isdigit() and "int" in kinds:
        return f"write {int(value)}, without quotes"
    return None


def _some(type_: ModelType) -> str:
    """The fields that give its shape."""
    shape = [field for field, kinds in type_.fields.items() if kinds == "int"]
    return ", ".join(shape[:12])
