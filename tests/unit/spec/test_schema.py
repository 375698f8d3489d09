"""The JSON Schema that editors use accepts what we accept, and sees what we refuse."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from headway.spec.load import preset_names, preset_text, validated
from headway.spec.located_yaml import read_yaml
from headway.spec.run_file import RunFile
from headway.spec.target_file import TargetFile

RUN_SCHEMA = RunFile.model_json_schema(by_alias=True)
TARGET_SCHEMA = TargetFile.model_json_schema(by_alias=True)

TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "object": dict,
    "array": list,
    "boolean": bool,
    "null": type(None),
}
LIMITS: dict[str, Any] = {
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "exclusiveMinimum": lambda value, limit: value > limit,
    "exclusiveMaximum": lambda value, limit: value < limit,
    "minItems": lambda value, limit: len(value) >= limit,
    "maxItems": lambda value, limit: len(value) <= limit,
    "pattern": lambda value, pattern: re.search(pattern, value) is not None,
    "enum": lambda value, known: value in known,
    "const": lambda value, known: value == known,
}
SILENT = {
    "$defs", "$ref", "title", "description", "default", "examples", "type", "anyOf",
    "properties", "additionalProperties", "required", "items", "prefixItems", "patternProperties",
}  # fmt: skip


def fits(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """As much of JSON Schema as ours use; a word that is not known here fails the test."""
    assert set(schema) <= SILENT | set(LIMITS), set(schema) - SILENT - set(LIMITS)
    if "$ref" in schema and not fits(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root):
        return False
    if "anyOf" in schema and not any(fits(value, part, root) for part in schema["anyOf"]):
        return False
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        return False
    if not all(check(value, schema[word]) for word, check in LIMITS.items() if word in schema):
        return False
    if isinstance(value, dict):
        return set(schema.get("required", [])) <= set(value) and all(
            fits(inner, _schema_of(key, schema), root) for key, inner in value.items()
        )
    if isinstance(value, list):
        schemas = schema.get("prefixItems", [schema.get("items", {})] * len(value))
        return all(fits(item, part, root) for item, part in zip(value, schemas, strict=True))
    return True


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _schema_of(key: str, schema: dict[str, Any]) -> dict[str, Any]:
    if key in schema.get("properties", {}):
        found: dict[str, Any] = schema["properties"][key]
        return found
    for pattern, inner in schema.get("patternProperties", {}).items():
        if re.search(pattern, key):
            return dict(inner)
    rest = schema.get("additionalProperties", True)
    if rest is False:
        return {"enum": []}
    return {} if rest is True else dict(rest)


@pytest.mark.parametrize(
    "text",
    [
        "objective: causal",
        "objective: {type: distill, teacher: gpt2}",
        "objective: {type: distill, teacher: {from: gpt2}, temperature: 2}",
        'objective: {call: "mine:loss"}',
        "batch: {global: 512}",
        "batch: {global: 0.5M tokens, micro: auto}",
        "batch: {global: 8, micro: 4}",
        "train_for: 10B tokens",
        "schedule: {warmup: 5%, decay: 2000 steps}",
        "schedule: {warmup: 0}",
        "checkpoint: {every: 10min, keep: {last: 3, every: 10k steps}}",
        "checkpoint: {every: [5 steps until 5, 1h], keep: {every: [2 steps until 4, 1k steps]}}",
        "evaluation: {every: 500 steps, sequences: all}",
        "resources: {accelerators: H100:8, nodes: 2..16, spot: all}",
        "resources: {nodes: 4}",
        "data: {train: prepared, validation: {a: b, c: {sources: [d], tokenizer: gpt2}}}",
        "data: {train: {sources: [a], tokenizer: {train: {vocab: 300}}}}",
        "model: {from: gpt2}",
        "model: {type: llama, config: {a: [1, {b: null}]}}",
        "optimizer: {lr: 6e-4, betas: [0.9, 0.95], max_grad_norm: off}",
        "optimizer: {weight_decay: 0, max_grad_norm: 1}",
        "memory: {checkpoint_activations: auto, compile: true}",
        "memory: {checkpoint_activations: 12}",
        "threads: 2",
        "budget: {usd: 500, hours: 48}",
        "secrets: [HF_TOKEN]",
    ],
)
def test_what_we_accept_an_editor_accepts(text: str) -> None:
    located = read_yaml(f"version: 1\n{text}\n", "f")
    validated(RunFile, located)
    assert fits(located.value, RUN_SCHEMA, RUN_SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        "learning_rate: 1",
        "optimizer: {learning_rate: 1}",
        "data: {validation: {a: {source: [d]}}}",
        "precision: float16",
        "train_for: 500",
        "memory: {compile: 'yes'}",
        "optimizer: {betas: [0.9, 1.5]}",
        "memory: {checkpoint_activations: 0}",
        "threads: 0",
        "version: 2",
    ],
)
def test_what_we_refuse_an_editor_underlines(text: str) -> None:
    assert not fits({"version": 1, **yaml.safe_load(text)}, RUN_SCHEMA, RUN_SCHEMA)


@pytest.mark.parametrize("name", preset_names())
def test_presets(name: str) -> None:
    assert fits(read_yaml(preset_text(name), name).value, RUN_SCHEMA, RUN_SCHEMA)


def test_numbers_among_the_arguments_of_a_script() -> None:
    """Editors read them as YAML does, and we as text."""
    written = yaml.safe_load("{version: 1, command: [python, train.py, --lr, 0.1, true]}")
    assert fits(written, RUN_SCHEMA, RUN_SCHEMA)
    assert not fits({**written, "command": "python train.py"}, RUN_SCHEMA, RUN_SCHEMA)


def test_targets() -> None:
    lab = {"storage": "s3://b/c", "prices": {"H100": 2.1}, "resources": {"accelerators": "H100:8"}}
    assert fits({"lab": lab}, TARGET_SCHEMA, TARGET_SCHEMA)
    assert fits({"lab": {"storage": {"claim": "a"}}}, TARGET_SCHEMA, TARGET_SCHEMA)
    assert not fits({"lab": {"kub": {}}}, TARGET_SCHEMA, TARGET_SCHEMA)
