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
from headway.plan.model_size import COUNTED, BadShape, model_size
from headway.preflight.unchecked import Unchecked
from headway.preflight.vocabulary import vocabulary_of
from headway.spec.hub_names import at_words
from headway.spec.load import Loaded

POSITIONS = "max_position_embeddings"


def model_problems(loaded: Loaded, is_here: bool, unchecked: Unchecked) -> Iterator[SpecError]:
    model = loaded.run.model
    if model is None or model.call is not None:
        return
    if model.from_ is not None:
        yield from _saved_model_problems(loaded, model.from_, unchecked)
        return
    assert model.type is not None
    type_ = model_types().get(model.type)
    by_table = list(_table_problems(loaded, type_, model.type))
    if _may_be_other_transformers(is_here):
        # What the table lacks may exist there.
        for one in by_table:
            unchecked.add(f"{one.problem} (by transformers {transformers_version()})")
    else:
        yield from by_table
    if type_ is not None and not by_table:
        yield from _shape_problems(loaded, type_, unchecked)


def _may_be_other_transformers(is_here: bool) -> bool:
    """Whether the run may have another version than the table's: an image's is not known here."""
    if not is_here:
        return True
    with suppress(metadata.PackageNotFoundError):
        return metadata.version("transformers") != transformers_version()
    return False


def _table_problems(loaded: Loaded, type_: ModelType | None, name: str) -> Iterator[SpecError]:
    if type_ is None:
        near = nearest_types(name)
        yield SpecError(
            f"transformers has no model type {name!r}",
            str(loaded.located.mark(("model", "type"))),
            f"did you mean {_any_of(near)}?"
            if near
            else "use a type of transformers (gpt2, llama, bert), or model.call: your own function",
        )
        return
    yield from _objective_problem(loaded, type_)
    assert loaded.run.model is not None
    for found in field_problems(type_, loaded.run.model.config):
        key = "model.config" if found.is_unknown else f"model.config.{found.field}"
        yield SpecError(f"{key}: {found.problem}", _where(loaded, found.field), found.hint)


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


def _shape_problems(loaded: Loaded, type_: ModelType, unchecked: Unchecked) -> Iterator[SpecError]:
    assert loaded.run.model is not None
    config = loaded.run.model.config
    try:
        model_size(type_.name, config)
    except BadShape as bad:
        yield SpecError(bad.message, _where(loaded, *_spellings(type_, bad.field)), bad.hint)
        return
    yield from _fit_problems(loaded, type_, config, unchecked)


def _spellings(type_: ModelType, field: str) -> list[str]:
    """All names of a field."""
    return [field, *(other for other, of in type_.aliases.items() if of == field)]


def _where(loaded: Loaded, *fields: str) -> str:
    """Position of a field of the model's config, under the name that is written there."""
    keys = [("model", "config", field) for field in fields]
    written = next((key for key in keys if key in loaded.located.keys), ("model", "config"))
    return str(loaded.located.mark(written))


def _fit_problems(
    loaded: Loaded, type_: ModelType, config: Mapping[str, Any], unchecked: Unchecked
) -> Iterator[SpecError]:
    """Whether positions cover the sequence, and the vocabulary the tokenizer."""
    length = loaded.run.data.sequence_length
    positions = type_.value(config, POSITIONS)
    # Other types may derive their positions from fields of other names.
    if positions is not None and length > positions and type_.name in COUNTED:
        name = type_.aliases.get(POSITIONS, POSITIONS)
        yield SpecError(
            f"data.sequence_length is {length}, and the model has {positions} positions",
            str(loaded.located.mark(("data", "sequence_length"))),
            f"set model.config.{name}: {length}, or a shorter sequence_length",
        )
    given, vocabulary = config.get("vocab_size"), vocabulary_of(loaded)
    if isinstance(given, int) and vocabulary is not None and given < vocabulary.size:
        if vocabulary.is_exact:
            yield SpecError(
                f"the tokenizer has {vocabulary.size} tokens, and the model {given}",
                _where(loaded, "vocab_size"),
                "remove vocab_size: it then is the tokenizer's",
            )
        else:
            unchecked.add(
                f"model.config.vocab_size is {given}, and the tokenizer that is trained first may "
                f"have {vocabulary.size} tokens"
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
            assert loaded.run.model is not None
            at = at_words(loaded.run.model.revision)
            unchecked.add(f"model.from: {source} on the hub is opened when the run starts{at}")
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
        merged = {**config, **loaded.run.model.config}
        yield from _fit_problems(loaded, type_, merged, unchecked)
