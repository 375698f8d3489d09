"""Number of tokens of a run's tokenizer, where it can be known before anything is prepared."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from headway.spec.data_config import DataSetConfig, SourceConfig
from headway.spec.load import Loaded


def vocabulary_size(loaded: Loaded) -> int | None:
    """At most, for a tokenizer that is trained first. None if only the hub or a store knows it."""
    train = loaded.run.data.train
    if train is None:
        return None
    for one in (train, *(train.mixture or {}).values()):
        if (size := _of_source(one, loaded.folder)) is not None:
            return size
    return None


def _of_source(source: SourceConfig | DataSetConfig, folder: Path) -> int | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        if source.path is not None and "://" not in source.path:
            manifest = json.loads((folder / source.path / "manifest.json").read_text("utf-8"))
            return int(manifest["vocab_size"])
        if source.tokenizer is not None and source.tokenizer.train is not None:
            return source.tokenizer.train.vocab
        if source.tokenizer is not None and source.tokenizer.from_ is not None:
            return _of_folder(folder / Path(source.tokenizer.from_).expanduser())
    return None


def _of_folder(folder: Path) -> int:
    """One more than the largest id: ids may have gaps, and embeddings are indexed by id."""
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocabulary = content["model"]["vocab"]
    known = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    added = [token["id"] for token in content.get("added_tokens", [])]
    return int(max([*known, *added])) + 1
