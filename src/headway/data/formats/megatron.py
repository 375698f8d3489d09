"""Sets of Megatron: tokens in NAME.bin, and in NAME.idx where sequences and documents begin: a
header, the lengths of all sequences in tokens, their offsets in bytes, and the number of the first
sequence of each document."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from headway.data.formats.chunks import (
    CHUNK_BYTES,
    Chunk,
    OpenedSource,
    RecordChunk,
    SourceRecord,
    damage_chunk,
    problem_chunk,
)

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, code of the tokens' type, number of sequences, number of bounds of documents."""
_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_SLICE = 2**14
"""Documents whose bounds are read at once: an index may be larger than memory."""


class DocumentIds(np.ndarray):
    """Token ids of a format that holds nothing else: `ids` need not be set."""


class _BadIndex(Exception):
    """Says what is wrong with an index, and at which byte."""


def bin_chunks(opened: OpenedSource, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    if not opened.can_seek or opened.open_beside is None:
        yield problem_chunk("compressed", opened.file, None, "decompress it, its .idx beside it")
        return
    size = opened.stream.seek(0, io.SEEK_END)
    opened.stream.seek(0)
    name, described = f"{opened.file[:-4]}.idx", 0
    try:
        with opened.open_beside(name) as index:
            for number, bounds, dtype in _documents(index):
                whole = bounds[bounds * dtype.itemsize <= size]
                yield from _chunks(opened, number, whole, dtype, chunk_bytes)
                described = int(bounds[-1]) * dtype.itemsize
        if described != size:
            raise _BadIndex(f"describes {described} bytes; {opened.file} has {size}")
    except _BadIndex as bad:
        share = 1 - opened.stream.tell() / max(1, size, described)
        yield damage_chunk("damaged file", opened.file, None, f"{name} {bad}", share=share)


def index_chunks(opened: OpenedSource) -> Iterator[Chunk]:
    yield RecordChunk(opened.file, ())  # read with its .bin


def _chunks(
    opened: OpenedSource, number: int, bounds: np.ndarray, dtype: np.dtype, chunk_bytes: int
) -> Iterator[Chunk]:
    """The documents from `number` on, as many at a time as fit; one that does not fit, in parts."""
    most = max(1, chunk_bytes // dtype.itemsize)
    first, last = 0, len(bounds) - 1
    while first < last:
        begin = int(bounds[first])
        fitting = int(np.searchsorted(bounds, begin + most, side="right")) - 1
        until = max(first + 1, fitting)
        end = int(bounds[until])
        for at in range(begin, max(end, begin + 1), most):
            data = opened.stream.read(min(most, end - at) * dtype.itemsize)
            ids = np.frombuffer(data, dtype).view(DocumentIds)
            parts = np.split(ids, bounds[first + 1 : until] - begin)
            records = tuple(SourceRecord(ids, number + first + i) for i, ids in enumerate(parts))
            num_lines = len(records) if at == begin else 0
            yield RecordChunk(opened.file, records, num_lines, at > begin, at + most < end)
        first = until


def _documents(index: BinaryIO) -> Iterator[tuple[int, np.ndarray, np.dtype]]:
    """In slices: the number of the first document, counted from 1; where the documents begin and
    the last one ends, in tokens of .bin; and the type of these."""
    size = index.seek(0, io.SEEK_END)
    index.seek(0)
    head = index.read(_HEADER.size).ljust(_HEADER.size, b"\0")
    magic, version, code, num_sequences, num_bounds = _HEADER.unpack(head)
    if magic != _MAGIC:
        raise _BadIndex(f"begins with {magic!r}, not with {_MAGIC!r}")
    if version != 1 or code not in _TYPES:
        raise _BadIndex(f"has version {version} at byte 9 and type {code} at byte 17: not known")
    dtype = np.dtype(_TYPES[code])
    offsets_at = _HEADER.size + 4 * num_sequences
    bounds_at = offsets_at + 8 * num_sequences
    if size != bounds_at + 8 * num_bounds:
        raise _BadIndex(f"ends at byte {size}, not at byte {bounds_at + 8 * num_bounds}")

    def read(array: int, first: int, last: int, kind: str) -> np.ndarray:
        item_bytes = np.dtype(kind).itemsize
        index.seek(array + first * item_bytes)
        return np.frombuffer(index.read((last - first) * item_bytes), kind)

    sequence = tokens = 0
    for first in range(0, num_bounds - 1, _SLICE):
        bounds = read(bounds_at, first, min(first + _SLICE + 1, num_bounds), "<i8")
        last = int(bounds[-1])
        if bounds[0] != sequence or np.any(np.diff(bounds) < 0) or last > num_sequences:
            raise _BadIndex(f"has bounds out of order from byte {bounds_at + 8 * first} on")
        lengths = read(_HEADER.size, sequence, last, "<i4").astype(np.int64)
        ends = tokens + np.append(0, np.cumsum(lengths))
        offsets = read(offsets_at, sequence, last, "<i8")
        wrong = np.flatnonzero((lengths < 0) | (offsets != ends[:-1] * dtype.itemsize))
        if len(wrong):
            raise _BadIndex(f"has a wrong offset at byte {offsets_at + 8 * (sequence + wrong[0])}")
        yield first + 1, ends[bounds - sequence], dtype
        sequence, tokens = last, int(ends[-1])
