"""Writing a prepared set: shard after shard in bounded memory, the manifest last."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import xxhash

import headway
from headway.data.shards import (
    BLOCK_TOKENS,
    MANIFEST,
    SHARDS,
    WINDOW_BLOCKS,
    Layout,
    Part,
    SetManifest,
    Shard,
    SpecialIds,
    shard_path,
    token_dtype,
)
from headway.errors import BadInput

SHARD_TOKENS = 2**26
"""128 MiB of uint16: few files, and each one short work to copy or to make again."""

_FILL_TOKENS = 2**20


class SetWriter:
    """Adds documents to a set that is being made; `finish` makes it a set.

    Used in a `with`, so that files are closed when preparation fails. What a failed one leaves has
    no manifest, is no set to anybody, and is cleared away by the next attempt.
    """

    def __init__(
        self,
        folder: Path,
        vocab_size: int,
        *,
        layout: Layout = "stream",
        window_tokens: int | None = None,
        block_tokens: int = BLOCK_TOKENS,
        window_blocks: int = WINDOW_BLOCKS,
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        assert shard_tokens >= 1
        assert (layout == "windows") == (window_tokens is not None)
        self._folder = folder
        self._vocab_size = vocab_size
        self._layout: Layout = layout
        self._window_tokens = window_tokens
        self._block_tokens = block_tokens
        self._window_blocks = window_blocks
        self._shard_tokens = shard_tokens
        self._token_dtype = token_dtype(vocab_size)
        self._shards: list[Shard] = []
        self._open: _OpenShard | None = None
        self.num_tokens = 0
        self.num_documents = 0
        refuse_finished(folder)
        _clear_unfinished(folder)

    def __enter__(self) -> SetWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open is not None:
            self._open.abandon()
            self._open = None

    def add(
        self,
        ids: np.ndarray,
        mask: np.ndarray | None = None,
        *,
        starts: np.ndarray | None = None,
    ) -> None:
        """One document, and which of its tokens count for the loss (all, without a mask).

        `starts` is for callers that add something other than whole documents (windows): the
        offsets in `ids` at which documents start. An empty document leaves no trace.
        """
        if len(ids) == 0:
            return
        assert ids.ndim == 1
        assert int(ids.min()) >= 0
        assert int(ids.max()) < self._vocab_size
        assert mask is None or mask.shape == ids.shape
        begins = np.zeros(1, dtype=np.int64) if starts is None else starts
        written = 0
        while written < len(ids):
            shard = self._open = self._open or self._next_shard()
            count = min(len(ids) - written, self._shard_tokens - shard.num_tokens)
            piece = slice(written, written + count)
            inside = begins[(begins >= written) & (begins < written + count)]
            # Before writing, num_tokens is the index in the stream of ids[written].
            shard.write(
                ids[piece],
                None if mask is None else mask[piece],
                inside - written + self.num_tokens,
            )
            written += count
            self.num_tokens += count
            self.num_documents += len(inside)
            if shard.num_tokens == self._shard_tokens:
                self._close_shard()

    def finish(
        self,
        *,
        special_ids: SpecialIds,
        tokenizer_digest: str,
        num_bytes: int,
        num_tokens_left_out: int = 0,
    ) -> SetManifest:
        if self._open is not None:
            self._close_shard()
        if not self._shards:
            raise BadInput(f"nothing to put into {self._folder}: no tokens came in")
        manifest = SetManifest(
            layout=self._layout,
            window_tokens=self._window_tokens,
            vocab_size=self._vocab_size,
            token_dtype=self._token_dtype,
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
            num_bytes=num_bytes,
            num_tokens_left_out=num_tokens_left_out,
            block_tokens=self._block_tokens,
            window_blocks=self._window_blocks,
            special_ids=special_ids,
            tokenizer_digest=tokenizer_digest,
            shards=tuple(self._shards),
            created_by=f"headway {headway.__version__}",
        )
        partial = self._folder / f"{MANIFEST}.partial"
        with partial.open("w", encoding="utf-8") as file:
            file.write(manifest.model_dump_json(indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._folder / MANIFEST)
        return manifest

    def _next_shard(self) -> _OpenShard:
        return _OpenShard(self._folder, f"{len(self._shards):05d}", self._token_dtype)

    def _close_shard(self) -> None:
        assert self._open is not None
        self._shards.append(self._open.close())
        self._open = None


class _HashedFile:
    """A file whose digest is known when it is closed, without reading it again."""

    def __init__(self, path: Path) -> None:
        self.file: BinaryIO = path.open("wb")
        self._hasher = xxhash.xxh3_128()

    def write(self, content: bytes) -> None:
        self.file.write(content)
        self._hasher.update(content)

    def close(self) -> str:
        # On disk before the manifest says so: a power cut must not leave a set with holes.
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        return self._hasher.hexdigest()


class _OpenShard:
    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self._folder = folder
        self._name = name
        self._dtype = "<u2" if dtype == "uint16" else "<u4"
        self._files: dict[Part, _HashedFile] = {
            part: _HashedFile(shard_path(folder, name, part)) for part in ("tokens", "documents")
        }
        self.num_tokens = 0
        self._num_documents = 0

    def write(self, ids: np.ndarray, mask: np.ndarray | None, starts: np.ndarray) -> None:
        if mask is not None and "mask" not in self._files:
            # The first mask of this shard: everything so far counts.
            self._files["mask"] = _HashedFile(shard_path(self._folder, self._name, "mask"))
            self._count_all(self.num_tokens)
        self._files["tokens"].write(ids.astype(self._dtype).tobytes())
        self._files["documents"].write(starts.astype("<u8").tobytes())
        if mask is not None:
            self._files["mask"].write((mask != 0).astype(np.uint8).tobytes())
        elif "mask" in self._files:
            self._count_all(len(ids))
        self.num_tokens += len(ids)
        self._num_documents += len(starts)

    def _count_all(self, count: int) -> None:
        for begin in range(0, count, _FILL_TOKENS):
            self._files["mask"].write(b"\x01" * min(_FILL_TOKENS, count - begin))

    def close(self) -> Shard:
        return Shard(
            name=self._name,
            num_tokens=self.num_tokens,
            num_documents=self._num_documents,
            has_mask="mask" in self._files,
            digests={part: file.close() for part, file in self._files.items()},
        )

    def abandon(self) -> None:
        for file in self._files.values():
            file.file.close()


def refuse_finished(folder: Path) -> None:
    """A set that is finished is never written over; runs may be reading it."""
    if (folder / MANIFEST).exists():
        raise BadInput(
            f"{folder} already holds a prepared set", "delete the folder, or prepare into another"
        )


def _clear_unfinished(folder: Path) -> None:
    shards = folder / SHARDS
    shards.mkdir(parents=True, exist_ok=True)
    for suffix in ("tokens", "documents", "mask"):
        for leftover in shards.glob(f"*.{suffix}"):
            leftover.unlink()
