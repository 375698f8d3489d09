"""Number of tokens of a run's tokenizer, where it can be known before anything is prepared."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headway.preflight.hub_cache import in_hub_cache, published_config
from headway.spec.data_config import TokenizerConfig
from headway.spec.load import Loaded


@dataclass(frozen=True)
class Vocabulary:
    size: int
    is_exact: bool
    """False for a tokenizer that is trained first: little text makes fewer tokens."""


def vocabulary_of(loaded: Loaded) -> Vocabulary | None:
    """None if only the hub or a store knows it, and this machine keeps no copy."""
    train = loaded.run.data.train
    if train is None:
        return None
    # In a mixture the other members use the first one's.
    first = next(iter(train.mixture.values())) if train.mixture else train
    with suppress(OSError, ValueError, KeyError, TypeError):
        if first.path is not None:
            if "://" in first.path:
                return None
            manifest = json.loads((loaded.folder / first.path / "manifest.json").read_text("utf-8"))
            return Vocabulary(int(manifest["vocab_size"]), is_exact=True)
        tokenizer = first.tokenizer or train.tokenizer
        if tokenizer is not None and tokenizer.train is not None:
            return Vocabulary(tokenizer.train.vocab, is_exact=False)
        if tokenizer is not None and tokenizer.from_ is not None:
            return Vocabulary(_known_size(loaded.folder, tokenizer), is_exact=True)
    return None


def _known_size(beside: Path, tokenizer: TokenizerConfig) -> int:
    """Size of a tokenizer in a folder, in the cache of the hub, or of a published model. Raises
    KeyError or OSError if it is not known here."""
    assert tokenizer.from_ is not None
    folder = beside / Path(tokenizer.from_).expanduser()
    if folder.is_dir():
        return vocabulary_of_folder(folder)
    cached = in_hub_cache(tokenizer.from_, tokenizer.revision, "tokenizer.json")
    if cached.is_file():
        return vocabulary_of_folder(cached.parent)
    return int((published_config(tokenizer.from_) or {})["vocab_size"])


def vocabulary_size(loaded: Loaded) -> int | None:
    """At most, for a tokenizer that is trained first."""
    found = vocabulary_of(loaded)
    return None if found is None else found.size


def vocabulary_of_folder(folder: Path) -> int:
    """One more than the largest id: ids may have gaps, and embeddings are indexed by id."""
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    vocabulary = content["model"]["vocab"]
    known = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    added = [token["id"] for token in content.get("added_tokens", [])]
    return int(max([*known, *added])) + 1
