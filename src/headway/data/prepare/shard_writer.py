"""Writes shards: tokens as they arrive, hashed on the way, the record last.

A shard is finished when its record exists; any other file in the folder is ignored, and overwritten
when its shard is built.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack, suppress
from functools import partial
from typing import IO, Literal

import numpy as np
import xxhash
from pydantic import ValidationError

from headway.data.formats.chunks import Problem
from headway.data.prepare.dedup import without_documents
from headway.data.prepare.encode import EncodedChunk
from headway.data.prepare.recipe import Recipe
from headway.data.prepare.windows import PackedTokens, WindowPacker
from headway.data.set_format import SHARDS, Frozen, shard_file, token_dtype
from headway.data.shard_table import PAGE_TOKENS, Part, Shard, page_digests, shard_name
from headway.data.statistics import Statistics, histogram
from headway.state.store import NUM_REQUESTS, Store, in_parallel

RECORD = ".json"
_FILL_TOKENS = 2**20


class ShardRecord(Frozen):
    """One finished shard of a unit. A unit with no tokens has a single record without a shard."""

    format_version: Literal[3]
    """Version of the set's format. Records of version 2 have none: their shards are built again."""
    recipe_digest: str
    unit: int
    index: int
    """Index among the unit's shards."""
    end_chunk: int
    """End of the range of the unit's chunks in this shard: the next shard starts with it."""
    is_last: bool
    """Whether this is the last shard of the unit."""
    shard: Shard | None
    num_bytes: int
    num_tokens_left_out: int
    statistics: Statistics
    problems: tuple[Problem, ...]
    lines: dict[str, int]
    """Number of lines read from each file, to number the lines of later pieces."""
    first_lines: dict[str, int]
    """Line on which each file's first chunk in this shard starts. If a piece starts inside a
    document, the lines before that belong to the previous piece and are counted there."""


def record_file(unit: int, index: int) -> str:
    return f"{SHARDS}/{shard_name(unit, index)}{RECORD}"


def read_records(
    store: Store, recipe_digest: str, units: Iterable[int]
) -> dict[tuple[int, int], ShardRecord]:
    """The finished shards of these units, by unit and index."""
    records = {}
    read = partial(read_record, store, recipe_digest)
    for record in in_parallel(lambda unit: read(unit, 0), units, NUM_REQUESTS):
        while record is not None:
            records[record.unit, record.index] = record
            record = None if record.is_last else read(record.unit, record.index + 1)
    return records


def read_record(store: Store, recipe_digest: str, unit: int, index: int) -> ShardRecord | None:
    """The record of a shard; None if that is not finished."""
    try:
        return parsed_record(store.read(record_file(unit, index)), recipe_digest)
    except FileNotFoundError:
        return None


def parsed_record(content: bytes, recipe_digest: str) -> ShardRecord | None:
    """None for a record of another recipe or version: its shard has to be built again."""
    try:
        record = ShardRecord.model_validate_json(content)
    except ValidationError:
        return None
    return record if record.recipe_digest == recipe_digest else None


class ShardWriter:
    """One shard, open for writing. Used in a `with`, so that files are closed on failure."""

    def __init__(
        self, store: Store, recipe: Recipe, unit: int, index: int, first_chunk: int
    ) -> None:
        self._store = store
        self._recipe = recipe
        self._unit, self._index = unit, index
        self._end_chunk = first_chunk
        self._files = ShardFiles(
            store, shard_name(unit, index), token_dtype(recipe.tokens.vocab_size)
        )
        window = recipe.settings.window_tokens
        self._windows = WindowPacker(recipe.tokens, window) if window is not None else None
        self._statistics = Statistics()
        self._problems: list[Problem] = []
        self._lines: dict[str, int] = {}
        self._first_lines: dict[str, int] = {}
        # For a document that continues in the next chunk: its tokens in this shard so far, None if
        # it started in an earlier shard; and whether any of its tokens was written.
        self._open_length: int | None = None
        self._is_begun = True
        self.num_bytes = 0

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.abandon()

    @property
    def size(self) -> int:
        """Approximate bytes of text in the shard; tokens taken over as ids count too."""
        return max(self.num_bytes, 2 * self._files.num_tokens)

    @property
    def num_tokens(self) -> int:
        return self._files.num_tokens

    @property
    def num_documents(self) -> int:
        return self._files.num_documents

    def add(self, encoded: EncodedChunk, duplicates: list[int]) -> None:
        """Adds the next chunk, without the documents numbered in `duplicates`."""
        encoded = without_documents(encoded, duplicates)
        self._end_chunk += 1
        self.num_bytes += int(encoded.num_bytes.sum())
        self._problems += encoded.problems
        self._first_lines.setdefault(encoded.file, encoded.first_line)
        self._lines[encoded.file] = self._lines.get(encoded.file, 0) + encoded.num_lines
        packed = self._packed(encoded)
        self._files.write(packed)
        unknown = self._recipe.tokens.unknown
        self._statistics += encoded.statistics + Statistics(
            lengths=histogram(self._whole_lengths(encoded)),
            num_unknown=0 if unknown is None else int(np.sum(packed.tokens == unknown)),
            num_masked=0 if packed.mask is None else int(np.sum(packed.mask == 0)),
        )

    def _packed(self, encoded: EncodedChunk) -> PackedTokens:
        continues_previous = encoded.opens and self._is_begun
        if encoded.continues and len(encoded.lengths):
            is_whole = encoded.opens and len(encoded.lengths) == 1
            self._is_begun = bool(encoded.lengths[-1]) or (is_whole and self._is_begun)
        if self._windows is not None:
            return self._windows.add(encoded, continues_previous)
        starts = np.cumsum(encoded.lengths) - encoded.lengths
        is_start = encoded.lengths > 0  # a document without tokens has no start
        is_start[: int(continues_previous)] = False
        return PackedTokens(encoded.tokens, encoded.mask, starts[is_start])

    def _whole_lengths(self, encoded: EncodedChunk) -> np.ndarray:
        """Token counts of the documents that end in this chunk, including earlier chunks; each
        document is counted once, in the shard where it starts."""
        lengths = encoded.lengths.copy()
        if not len(lengths):
            return lengths
        if encoded.opens:
            if self._open_length is not None:
                lengths[0] += self._open_length
            elif encoded.continues and len(lengths) == 1:
                return lengths[:0]
            else:
                lengths = lengths[1:]
        self._open_length = 0
        if encoded.continues and len(lengths):
            self._open_length = int(lengths[-1])
            lengths = lengths[:-1]
        return lengths[lengths > 0]

    def close(self, *, is_last: bool) -> ShardRecord:
        """Finishes the shard: its files, then its record."""
        unfinished = np.array([self._open_length] if self._open_length else [])
        record = ShardRecord(
            format_version=3,
            recipe_digest=self._recipe.digest,
            unit=self._unit,
            index=self._index,
            end_chunk=self._end_chunk,
            is_last=is_last,
            shard=self._files.close(),
            num_bytes=self.num_bytes,
            num_tokens_left_out=self._windows.num_held if self._windows is not None else 0,
            statistics=self._statistics + Statistics(lengths=histogram(unfinished)),
            problems=tuple(self._problems),
            lines=self._lines,
            first_lines=self._first_lines,
        )
        self._store.write(record_file(self._unit, self._index), record.model_dump_json().encode())
        return record


class ShardFiles:
    """The three or four files of a shard; each is created with its first token."""

    def __init__(self, store: Store, name: str, dtype: str) -> None:
        self._store = store
        self._name = name
        self._dtype = "<u2" if dtype == "uint16" else "<u4"
        self._files: dict[Part, _HashedFile] = {}
        self.num_tokens = 0
        self.num_documents = 0

    def write(self, packed: PackedTokens) -> None:
        if len(packed.tokens) == 0:
            return
        if packed.mask is not None and "mask" not in self._files:
            # First mask of this shard: all tokens so far count.
            self._count_all(self.num_tokens)
        self._file("tokens").write(packed.tokens.astype(self._dtype, copy=False).tobytes())
        starts = packed.starts + self.num_tokens
        self._file("documents").write(starts.astype("<u8").tobytes())
        if packed.mask is not None:
            self._file("mask").write(packed.mask.tobytes())
        elif "mask" in self._files:
            self._count_all(len(packed.tokens))
        self.num_tokens += len(packed.tokens)
        self.num_documents += len(starts)

    def close(self) -> Shard | None:
        """Closes the files, which are then on disk or in the store. None if there were no
        tokens."""
        if self.num_tokens == 0:
            return None
        pages = [
            self._files[part].page_digests() for part in ("tokens", "mask") if part in self._files
        ]
        self._file("pages").write(np.concatenate(pages).astype("<u4").tobytes())
        return Shard(
            name=self._name,
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
            has_mask="mask" in self._files,
            digests={part: file.close() for part, file in self._files.items()},
        )

    def abandon(self) -> None:
        """Closes files that `close` has not closed."""
        for file in self._files.values():
            file.abandon()

    def _file(self, part: Part) -> _HashedFile:
        if part not in self._files:
            item = {"tokens": np.dtype(self._dtype).itemsize, "mask": 1}.get(part)
            self._files[part] = _HashedFile(self._store, shard_file(self._name, part), item)
        return self._files[part]

    def _count_all(self, count: int) -> None:
        file = self._file("mask")
        for begin in range(0, count, _FILL_TOKENS):
            file.write(b"\x01" * min(_FILL_TOKENS, count - begin))


class _Abandoned(Exception):
    """Tells the store that a file will not be finished."""


class _HashedFile:
    """A file that is hashed while it is written, so it need not be read again. `item_bytes`: of a
    file that has pages."""

    def __init__(self, store: Store, name: str, item_bytes: int | None) -> None:
        self._stack = ExitStack()
        self._file: IO[bytes] = self._stack.enter_context(store.writing(name))
        self._hasher = xxhash.xxh3_128()
        self._page_bytes = item_bytes and PAGE_TOKENS * item_bytes
        self._pages: list[int] = []
        self._page = b""  # the begun one

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self._hasher.update(content)
        if self._page_bytes:
            content = self._page + content
            whole = len(content) // self._page_bytes * self._page_bytes
            self._pages += page_digests(content[:whole], self._page_bytes)
            self._page = content[whole:]

    def page_digests(self) -> list[int]:
        """The digests of all pages. Nothing is written after."""
        assert self._page_bytes
        return self._pages + page_digests(self._page, self._page_bytes)

    def close(self) -> str:
        # On disk before the record exists: a power failure must not leave a set with holes.
        self._stack.close()
        return self._hasher.hexdigest()

    def abandon(self) -> None:
        abandoned = _Abandoned()
        with suppress(_Abandoned):
            self._stack.__exit__(_Abandoned, abandoned, None)
