"""Prepared sets of any tokens, written from the format's description alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headway.data.set_format import (
    BLOCK_TOKENS,
    WINDOW_BLOCKS,
    SetManifest,
    SpecialIds,
    file_digest,
    token_bytes,
    token_dtype,
)
from headway.data.shard_table import Part, Shard
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
        shards.append(_write_shard(folder, f"{number:05d}", parts))
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
        shards=tuple(shards),
        created_by="a test",
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json(exclude_none=True))
    return manifest


def _write_shard(folder: Path, name: str, parts: dict[Part, np.ndarray]) -> Shard:
    digests: dict[Part, str] = {}
    for part, content in parts.items():
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
