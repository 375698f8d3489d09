"""Whether the model can be built, and fits the sequences and the tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from headway.errors import SpecError
from headway.plan.model_fields import (
    ModelType,
    field_problems,
    model_types,
    nearest_types,
    transformers_version,
)
from headway.plan.model_size import BadShape, model_size
from headway.preflight.unchecked import Unchecked
from headway.preflight.vocabulary import vocabulary_size
from headway.spec.load import Loaded

POSITIONS = "max_position_embeddings"


def model_problems(loaded: Loaded, unchecked: Unchecked) -> Iterator[SpecError]:
    model = loaded.run.model
    if model is None or model.call is not None:
        return
    if model.from_ is not None:
        yield from _saved_model_problems(loaded, model.from_, unchecked)
        return
    assert model.type is not None
    type_ = model_types().get(model.type)
    if type_ is not None:
        yield from _objective_problem(loaded, type_)
        yield from _config_problems(loaded, type_)
    elif _is_other_transformers():
        unchecked.add(
            f"model.type: {model.type} is not in the table of transformers {transformers_version()}"
        )
    else:
        near = nearest_types(model.type)
        yield SpecError(
            f"transformers has no model type {model.type!r}",
            str(loaded.located.mark(("model", "type"))),
            f"did you mean {_any_of(near)}?"
            if near
            else "use a type of transformers (gpt2, llama, bert), or model.call: your own function",
        )


def _is_other_transformers() -> bool:
    """Whether another version than the table's is installed, which may know other types."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version("transformers") != transformers_version()
    return False


def _any_of(names: list[str]) -> str:
    *all_but_last, last = names
    return f"{', '.join(all_but_last)} or {last}" if all_but_last else last


def _objective_problem(loaded: Loaded, type_: ModelType) -> Iterator[SpecError]:
    is_masked = loaded.run.objective.type == "masked"
    if not (type_.masked if is_masked else type_.causal):
        kind, other = ("masked", "causal") if is_masked else ("causal", "masked")
        yield SpecError(
            f"{type_.name} has no {kind} language model",
            str(loaded.located.mark(("model", "type"))),
            f"use objective: {other}, or another model type",
        )


def _config_problems(loaded: Loaded, type_: ModelType) -> Iterator[SpecError]:
    assert loaded.run.model is not None
    config = loaded.run.model.config
    wrong = False
    for found in field_problems(type_, config):
        wrong = True
        name = "model.config" if "has no field" in found.problem else f"model.config.{found.field}"
        yield SpecError(f"{name}: {found.problem}", _where(loaded, found.field), found.hint)
    if wrong:
        return
    try:
        model_size(type_.name, config)
    except BadShape as bad:
        yield SpecError(bad.message, _where(loaded, *_spellings(type_, bad.field)), bad.hint)
        return
    yield from _fit_problems(loaded, type_, config)


def _spellings(type_: ModelType, field: str) -> list[str]:
    """All names of a field."""
    return [field, *(other for other, of in type_.aliases.items() if of == field)]


def _where(loaded: Loaded, *fields: str) -> str:
    """Position of a field of the model's config, under the name that is written there."""
    keys = [("model", "config", field) for field in fields]
    written = next((key for key in keys if key in loaded.located.keys), ("model", "config"))
    return str(loaded.located.mark(written))


def _fit_problems(
    loaded: Loaded, type_: ModelType, config: Mapping[str, Any]
) -> Iterator[SpecError]:
    """Whether positions cover the sequence, and the vocabulary the tokenizer."""
    length = loaded.run.data.sequence_length
    positions = type_.value(config, POSITIONS)
    if positions is not None and length > positions:
        name = type_.aliases.get(POSITIONS, POSITIONS)
        yield SpecError(
            f"data.sequence_length is {length}, and the model has {positions} positions",
            str(loaded.located.mark(("data", "sequence_length"))),
            f"set model.config.{name}: {length}, or a shorter sequence_length",
        )
    vocabulary, tokens = config.get("vocab_size"), vocabulary_size(loaded)
    if isinstance(vocabulary, int) and tokens is not None and vocabulary < tokens:
        yield SpecError(
            f"the tokenizer has {tokens} tokens, and the model {vocabulary}",
            _where(loaded, "vocab_size"),
            "remove vocab_size: it then is the tokenizer's",
        )


def _saved_model_problems(loaded: Loaded, source: str, unchecked: Unchecked) -> Iterator[SpecError]:
    """Of a model in a folder, as `from` names it."""
    where = str(loaded.located.mark(("model", "from")))
    if "@" in source or "://" in source:
        unchecked.add(f"model.from: {source} is opened when the run starts")
        return
    folder = loaded.folder / Path(source).expanduser()
    if not folder.is_dir():
        if source.startswith((".", "/", "~")) or source.count("/") > 1:
            yield SpecError(
                f"model.from: no folder {folder}",
                where,
                "check the path, which is relative to the run file, or give a name on the hub",
            )
        else:
            unchecked.add(f"model.from: {source} on the hub is opened when the run starts")
        return
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except FileNotFoundError:
        yield SpecError(
            f"model.from: {folder} has no config.json, so it is not a model in the HF format", where
        )
        return
    except ValueError as error:
        yield SpecError(f"model.from: {folder}/config.json is not valid JSON: {error}", where)
        return
    type_ = model_types().get(str(config.get("model_type"))) if isinstance(config, dict) else None
    if type_ is not None:
        assert loaded.run.model is not None
        yield from _objective_problem(loaded, type_)
        yield from _fit_problems(loaded, type_, {**config, **loaded.run.model.config})
