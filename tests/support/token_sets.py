"""Prepared sets of any tokens, written from the format's description alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from xxhash import xxh3_64_intdigest

from headway.clock import SystemClock
from headway.data.reading.table_file import open_table
from headway.data.set_format import (
    BLOCK_TOKENS,
    WINDOW_BLOCKS,
    SetManifest,
    SpecialIds,
    file_digest,
    read_manifest,
    token_bytes,
    token_dtype,
)
from headway.data.shard_table import PARTS, Part, Shard, ShardTable
from headway.state.store import Store

Document = tuple[Sequence[int], Sequence[bool] | None]
"""Tokens, and which of them count for the loss: all, without a mask."""


def write_set(
    folder: Path,
    documents: Sequence[Document],
    *,
    vocab_size: int = 100,
    shard_tokens: int = 2**26,
    window_tokens: int | None = None,
    block_tokens: int = BLOCK_TOKENS,
    window_blocks: int = WINDOW_BLOCKS,
    special_ids: SpecialIds | None = None,
) -> SetManifest:
    (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")
    (folder / "shards").mkdir(exist_ok=True)
    documents = [document for document in documents if len(document[0])]
    tokens = np.concatenate([np.array(ids, dtype=np.int64) for ids, _ in documents])
    counts = np.concatenate(
        [np.ones(len(ids), bool) if mask is None else np.array(mask) for ids, mask in documents]
    )
    masked = np.concatenate([np.full(len(ids), mask is not None) for ids, mask in documents])
    starts = np.cumsum([0, *(len(ids) for ids, _ in documents[:-1])])
    shards = []
    for number, begin in enumerate(range(0, len(tokens), shard_tokens)):
        here = slice(begin, begin + shard_tokens)
        inside = starts[(starts >= begin) & (starts < begin + shard_tokens)]
        parts: dict[Part, np.ndarray] = {
            "tokens": tokens[here].astype(f"<u{token_bytes(token_dtype(vocab_size))}"),
            "documents": (inside - begin).astype("<u8"),
        }
        if masked[here].any():
            parts["mask"] = counts[here].astype(np.uint8)
        shards.append(write_shard(folder, f"{number:05d}", parts))
    manifest = SetManifest(
        layout="stream" if window_tokens is None else "windows",
        window_tokens=window_tokens,
        vocab_size=vocab_size,
        token_dtype=token_dtype(vocab_size),
        num_tokens=len(tokens),
        num_documents=len(starts),
        num_bytes=123,
        block_tokens=block_tokens,
        window_blocks=window_blocks,
        special_ids=special_ids or SpecialIds(end_of_text=0, special=(0,)),
        tokenizer_digest=file_digest(folder / "tokenizer" / "tokenizer.json"),
        num_shards=len(shards),
        shard_table_digest=write_table(folder, shards),
        created_by="a test",
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json(exclude_none=True))
    return manifest


def table_of(folder: Path) -> ShardTable:
    """The shards of a set on this machine."""
    store = Store(folder)
    return open_table(store, read_manifest(store), folder, SystemClock())


def as_version_2(folder: Path) -> None:
    """Rewrites a set as earlier versions wrote it."""
    shards = [shard.model_dump(mode="json") for shard in table_of(folder)]
    for shard in shards:
        del shard["digests"]["pages"]
        (folder / "shards" / f"{shard['name']}.pages").unlink()
    path = folder / "manifest.json"
    facts = json.loads(path.read_text())
    for key in ("num_shards", "shard_table", "shard_table_digest"):
        facts.pop(key, None)
    (folder / "shards.table").unlink()
    path.write_text(json.dumps(facts | {"version": 2, "shards": shards}))


def write_table(folder: Path, shards: Sequence[Shard]) -> str:
    """Its digest."""
    (folder / "shards.table").write_bytes(ShardTable.of(shards).to_bytes())
    return file_digest(folder / "shards.table")


def write_shard(folder: Path, name: str, parts: dict[Part, np.ndarray]) -> Shard:
    """`parts`: tokens, documents and mask, if there is one."""
    pages = [
        xxh3_64_intdigest(parts[part][begin : begin + 2048].tobytes()) % 2**32
        for part in PARTS
        if part in parts and part != "documents"
        for begin in range(0, len(parts[part]), 2048)
    ]
    digests: dict[Part, str] = {}
    for part, content in {**parts, "pages": np.array(pages, "<u4")}.items():
        path = folder / "shards" / f"{name}.{part}"
        content.tofile(path)
        digests[part] = file_digest(path)
    return Shard(
        name=name,
        num_tokens=len(parts["tokens"]),
        num_documents=len(parts["documents"]),
        has_mask="mask" in parts,
        digests=digests,
    )


def copy_to(location: str, folder: Path) -> str:
    """The folder's files into a store; the location."""
    store = Store(location)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        store.write(path.relative_to(folder).as_posix(), path.read_bytes())
    return location
