"""The sets a run file names, prepared when they are not yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import xxhash

from headway.clock import SystemClock
from headway.errors import needs_train

if TYPE_CHECKING:
    from headway.data.prepare import TokenizerSource
    from headway.spec.load import Loaded
    from headway.spec.run import DataSet, Tokenizer

PREPARED = "prepared"
"""Folder beside the run file for what `run` prepares by itself."""
HASHED_BYTES = 2**26
"""Files up to here are known by their content, so that a clone or a touch does not prepare them
again; larger ones by size and time, since reading them at every start would take too long."""


def sets_of(loaded: Loaded) -> tuple[Path, dict[str, Path]]:
    """Folders of the training set and of the validation sets, prepared."""
    data = loaded.run.data
    assert data.train is not None
    train = ready_set("train", data.train, loaded, tokenizer_of=None)
    validation = {
        name: ready_set(name, dataset, loaded, tokenizer_of=train)
        for name, dataset in data.validation.items()
    }
    return train, validation


def ready_set(
    name: str,
    dataset: DataSet,
    loaded: Loaded,
    tokenizer_of: Path | None,
    into: Path | None = None,
) -> Path:
    """The set's folder. Where it comes from sources, one folder for each state of them, so that
    edited text or settings are prepared anew and what is there is never rewritten."""
    if dataset.path is not None:
        return loaded.folder / dataset.path
    try:
        from headway.data.prepare import prepare
        from headway.data.shards import MANIFEST, TOKENIZER
        from headway.data.sources import find_files
    except ImportError as error:
        raise needs_train("preparing data", error) from None

    from headway.cli.progress import PrepareProgress

    assert dataset.sources is not None
    source = _tokenizer_source(dataset.tokenizer, tokenizer_of and tokenizer_of / TOKENIZER)
    masked = loaded.run.objective.type == "masked"
    layout: Literal["stream", "windows"] = "windows" if masked else "stream"
    window = loaded.run.data.sequence_length if masked else None
    files = find_files(dataset.sources, loaded.folder)
    if into is None:
        state = {
            "files": [_file_state(file, loaded.folder) for file in files],
            "column": dataset.column,
            "tokenizer": _tokenizer_state(source, loaded.folder),
            "layout": [layout, window],
        }
        text = json.dumps(state, sort_keys=True)
        into = loaded.folder / PREPARED / f"{name}-{xxhash.xxh3_64_hexdigest(text.encode())[:12]}"
        if (into / MANIFEST).is_file():
            return into
    with PrepareProgress(name, sum(file.stat().st_size for file in files)) as progress:
        manifest = prepare(
            dataset.sources,
            dataset.column,
            source,
            into,
            loaded.folder,
            layout,
            window,
            progress.show,
            SystemClock(),
        )
        progress.finished(manifest.num_documents, manifest.num_tokens, into)
    return into


def _file_state(file: Path, folder: Path) -> list[Any]:
    facts = file.stat()
    name = str(file.relative_to(folder)) if file.is_relative_to(folder) else str(file)
    if facts.st_size <= HASHED_BYTES:
        return [name, xxhash.xxh3_64_hexdigest(file.read_bytes())]
    return [name, facts.st_size, facts.st_mtime_ns]


def _tokenizer_state(source: TokenizerSource, folder: Path) -> list[Any]:
    """A tokenizer in a folder is known by its content: the name may stay while it changes."""
    if source.load is not None and (folder / source.load / "tokenizer.json").is_file():
        content = (folder / source.load / "tokenizer.json").read_bytes()
        return [xxhash.xxh3_64_hexdigest(content), None]
    return [source.load, source.train_vocab]


def _tokenizer_source(tokenizer: Tokenizer | None, shared: Path | None) -> TokenizerSource:
    from headway.data.prepare import TokenizerSource

    if tokenizer is None:
        assert shared is not None, "require_complete has seen to it"
        return TokenizerSource(load=str(shared))
    if tokenizer.train is not None:
        return TokenizerSource(train_vocab=tokenizer.train.vocab)
    return TokenizerSource(load=tokenizer.from_)
