"""Preparing in this process, and what a set says it holds, read from its files alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from headway.data.prepare.encode import EncodedChunk
from headway.data.prepare.in_parts import prepare_in_parts
from headway.data.prepare.job import PrepareJob, prepare
from headway.data.prepare.progress import PrepareProgress
from headway.data.prepare.recipe import RecipeSettings
from headway.data.set_format import SetManifest, read_manifest
from headway.data.statistics import Statistics
from headway.data.tokenizer import TokenizerSource
from headway.state.store import Store
from support.clock import Patient
from support.token_sets import table_of

MEMORY = Path("/dev/shm")


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A set's files reach the disk before its record does, which on a disk takes ten times as long
    as everything else in a test."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


def job_for(
    sources: Sequence[str],
    into: Path,
    tokenizer: Path | str | int,
    *,
    beside: Path | None = None,
    code: Path | None = None,
    strict: bool = False,
    processes: int = 1,
    **settings: Any,
) -> PrepareJob:
    """A number as `tokenizer` trains one of that size; `window_tokens` makes a set of windows."""
    if "window_tokens" in settings:
        settings.setdefault("layout", "windows")
    return PrepareJob(
        sources,
        TokenizerSource(train_vocab=tokenizer)
        if isinstance(tokenizer, int)
        else TokenizerSource(load=str(tokenizer)),
        str(into),
        beside or into.parent,
        RecipeSettings(**settings),
        code=code,
        strict=strict,
        processes=processes,
    )


def run(
    job: PrepareJob, progress: Callable[[PrepareProgress], None] = lambda _: None
) -> SetManifest:
    return prepare(job, progress, Patient())


def run_part(job: PrepareJob, part: int, num_parts: int) -> SetManifest | None:
    """What a pod of a target does. Part 0 comes first; the manifest, once all parts are done."""
    clock = Patient()
    return prepare_in_parts(job, part, num_parts, num_parts, lambda _: None, clock, lambda _: None)


def encoded(
    documents: list[list[int]],
    opens: bool = False,
    continues: bool = False,
    mask: Callable[[int], bool] | None = None,
) -> EncodedChunk:
    """A chunk of three bytes to a token; `mask` says of each token whether it counts."""
    flat = [token for one in documents for token in one]
    return EncodedChunk(
        tokens=np.array(flat, dtype=np.uint16),
        mask=None if mask is None else np.array([mask(token) for token in flat], dtype=np.uint8),
        lengths=np.array([len(one) for one in documents], dtype=np.int64),
        num_bytes=np.array([3 * len(one) for one in documents], dtype=np.int64),
        hashes=None,
        opens=opens,
        continues=continues,
        statistics=Statistics(),
        problems=(),
        file="a file",
        first_line=1,
        num_lines=0,
    )


def write_lines(path: Path, records: Iterable[object]) -> None:
    """A text that is no JSON is written as it is."""
    lines = (one if isinstance(one, str) else json.dumps(one) for one in records)
    path.write_text("".join(f"{line}\n" for line in lines))


def files_of(folder: Path) -> dict[str, bytes]:
    """All that a finished set consists of, records too."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def tokens_of(folder: Path) -> list[np.ndarray]:
    """Of each shard."""
    manifest = read_manifest(Store(folder))
    kind = f"<u{manifest.token_bytes}"
    return [
        np.fromfile(folder / "shards" / f"{shard.name}.tokens", kind).astype(np.int64)
        for shard in table_of(folder)
    ]


def documents_of(folder: Path) -> list[list[int]]:
    """The tokens of each document, by its start; it may go on in the next shard."""
    manifest = read_manifest(Store(folder))
    starts, first = [], 0
    for shard in table_of(folder):
        here = np.fromfile(folder / "shards" / f"{shard.name}.documents", "<u8").astype(np.int64)
        starts += (here + first).tolist()
        first += shard.num_tokens
    assert starts[0] == 0
    assert starts == sorted(set(starts))
    assert len(starts) == manifest.num_documents
    return [part.tolist() for part in np.split(np.concatenate(tokens_of(folder)), starts[1:])]


def mask_of(folder: Path) -> list[int]:
    """Of all tokens, in a row."""
    found: list[int] = []
    for shard in table_of(folder):
        path = folder / "shards" / f"{shard.name}.mask"
        assert path.exists() == shard.has_mask
        found += path.read_bytes() if shard.has_mask else [1] * shard.num_tokens
    return found


def texts_of(folder: Path) -> list[str]:
    """Of each document of a stream, without the end-of-text that every one must have."""
    end = read_manifest(Store(folder)).special_ids.end_of_text
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    documents = documents_of(folder)
    assert all(document[-1] == end and end not in document[:-1] for document in documents)
    texts: list[str] = tokenizer.decode_batch(
        [document[:-1] for document in documents], skip_special_tokens=False
    )
    return texts
