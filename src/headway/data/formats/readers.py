"""Maps file suffixes to readers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from tokenize import TokenError
from typing import BinaryIO

from headway.data.formats.chunks import (
    DAMAGED,
    Chunk,
    OpenedSource,
    Problem,
    RecordChunk,
    damage_chunk,
    problem_chunk,
)
from headway.data.formats.csv_files import csv_chunks, tsv_chunks
from headway.data.formats.json_files import json_chunks
from headway.data.formats.open_files import (
    Decompressed,
    decompressed,
    open_raw,
    seekable_copy,
    split_suffix,
)
from headway.data.formats.text_and_jsonl import json_line_chunks, text_chunks

Reader = Callable[[OpenedSource], Iterator[Chunk]]


def _with_extra(module: str, function: str) -> Reader:
    """A reader that needs NumPy or Arrow: `headway check` reads the other formats without them."""

    def read(opened: OpenedSource) -> Iterator[Chunk]:
        reader: Reader = getattr(import_module(f"headway.data.formats.{module}"), function)
        return reader(opened)

    return read


READERS: dict[str, Reader] = {
    ".txt": text_chunks,
    ".jsonl": json_line_chunks,
    ".ndjson": json_line_chunks,
    ".json": json_chunks,
    ".csv": csv_chunks,
    ".tsv": tsv_chunks,
    ".parquet": _with_extra("parquet", "parquet_chunks"),
    ".arrow": _with_extra("parquet", "arrow_chunks"),
    ".npy": _with_extra("arrays", "npy_chunks"),
    ".h5": _with_extra("arrays", "h5_chunks"),
    ".hdf5": _with_extra("arrays", "h5_chunks"),
    ".bin": _with_extra("megatron", "bin_chunks"),
    ".idx": _with_extra("megatron", "index_chunks"),
}
ARCHIVES = (".tar", ".tgz", ".txz", ".tzst")
"""Suffixes of archives, which are not read."""
NEED_SEEK = (".parquet", ".arrow", ".h5", ".hdf5")
SPLITTABLE = (".txt", ".jsonl", ".ndjson")
"""Suffixes of formats whose uncompressed files can be read in parts, in parallel."""
_DAMAGED = (*DAMAGED, TokenError)
"""NumPy parses array headers with Python's tokenizer, which raises its own errors."""

SUPPORTED = ", ".join(READERS) + ", each also as .gz, .zst or .xz"


def is_readable(name: str) -> bool:
    return split_suffix(name)[0] in READERS


def is_archive(name: str) -> bool:
    return split_suffix(name)[0] in ARCHIVES


def is_splittable(name: str) -> bool:
    suffix, compression = split_suffix(name)
    return suffix in SPLITTABLE and not compression


def file_chunks(
    name: str,
    beside: Path,
    begin: int = 0,
    end: int | None = None,
    *,
    columns: tuple[str, ...] | None = None,
    anonymous: bool = False,
    position: Callable[[int], None] = lambda _: None,
) -> Iterator[Chunk]:
    """The chunks of a file or of a byte range of it; reports the offset reached to `position`."""
    with open_raw(name, beside, anonymous) as raw:
        suffix, compression = split_suffix(name)
        is_empty = True
        stream = decompressed(raw, compression) if compression else raw
        try:
            near = partial(open_raw, beside=beside, anonymous=anonymous)
            opened = OpenedSource(name, stream, not compression, begin, end, columns, near)
            for chunk in _chunks(opened, suffix):
                is_empty = False
                position(raw.tell())
                yield _with_loss(chunk, name, raw, stream)
        except _DAMAGED as error:
            message = f"{error}; the rest of the file is lost"
            share = 1.0 if is_empty else None
            is_empty = False
            damage = damage_chunk("damaged file", name, None, message, share=share)
            yield _with_loss(damage, name, raw, stream)
        if is_empty and begin == 0:
            yield problem_chunk("empty file", name, None, "there is nothing in it")


def _with_loss(chunk: Chunk, name: str, raw: BinaryIO, stream: object) -> Chunk:
    """Return the chunk; damage to the file itself gets the number of bytes that are lost."""
    if not isinstance(chunk, RecordChunk):
        return chunk
    items = tuple(
        _measured(item, raw, stream)
        if isinstance(item, Problem) and item.is_damage and item.file == name
        else item
        for item in chunk.items
    )
    return replace(chunk, items=items)


def _measured(problem: Problem, raw: BinaryIO, stream: object) -> Problem:
    """Return the problem with the bytes and the share of the file that are lost, where the reader
    or the compression knows them."""
    at = raw.tell()
    size = raw.seek(0, os.SEEK_END)
    raw.seek(at)
    num_bytes, share = None, problem.share
    if share is not None:
        num_bytes = round(size * share)
    elif isinstance(stream, Decompressed) and at < size:
        num_bytes, share = size - at, (size - at) / size
    elif isinstance(stream, Decompressed) and stream.position < (stream.promised or 0):
        # The file was cut off: the same share of its bytes is missing as of its text.
        share = 1 - stream.position / (stream.promised or 1)
        num_bytes = round(size * share / (1 - share)) if share < 1 else size
    return replace(problem, num_bytes=num_bytes, share=share)


def _chunks(opened: OpenedSource, suffix: str) -> Iterator[Chunk]:
    if suffix in NEED_SEEK and not opened.can_seek:
        with seekable_copy(opened.stream) as copy:
            yield from READERS[suffix](
                OpenedSource(opened.file, copy, can_seek=True, columns=opened.columns)
            )
    else:
        yield from READERS[suffix](opened)
