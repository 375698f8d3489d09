"""Data that is already tokenised: NumPy and HDF5 arrays of token ids.

    two dimensions   each row is a document
    one dimension    a stream without known document boundaries: one document

A row longer than a chunk is emitted in parts, so that memory use does not grow with its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

import numpy as np

from headway.data.formats.chunks import (
    CHUNK_BYTES,
    DAMAGED,
    Chunk,
    OpenedSource,
    SourceRecord,
    damage_chunk,
    problem_chunk,
)
from headway.data.formats.text_and_jsonl import ByteReader
from headway.errors import BadInput

_H5_CACHE_BYTES = 2**26
"""Cache for decompressed HDF5 blocks. Blocks are usually larger than a chunk; without the cache,
each would be decompressed again for every chunk inside it."""
_H5_ERRORS = (*DAMAGED, RuntimeError, KeyError, TypeError, MemoryError)
_LISTED_DATASETS = 50


@dataclass(frozen=True)
class IdChunk:
    """Rows of equal length, or part of a single row."""

    file: str
    first_row: int
    values: np.ndarray | Mapping[str, np.ndarray]
    """Two-dimensional arrays: one for .npy, one per dataset name for HDF5."""
    opens: bool = False
    continues: bool = False

    @property
    def num_lines(self) -> int:
        return 0 if self.opens else self._num_rows

    @property
    def _num_rows(self) -> int:
        if isinstance(self.values, np.ndarray):
            return len(self.values)
        return len(next(iter(self.values.values())))

    def records(self) -> Iterator[SourceRecord]:
        for number in range(self._num_rows):
            value: Any
            if isinstance(self.values, np.ndarray):
                value = _native(self.values[number])
            else:
                value = {name: _native(array[number]) for name, array in self.values.items()}
            yield SourceRecord(value, self.first_row + number)


def npy_chunks(opened: OpenedSource, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    stream = opened.stream
    if opened.can_seek:
        stream.seek(0)
    try:
        shape, is_fortran, dtype = _npy_header(stream)
    except DAMAGED as error:
        yield damage_chunk("damaged file", opened.file, None, str(error), share=1.0)
        return
    if message := _no_ids(shape, dtype):
        yield problem_chunk("not token ids", opened.file, None, message)
        return
    if is_fortran and min(shape) > 1:
        message = "it is in column-major order: save it with np.ascontiguousarray"
        yield problem_chunk("Fortran order", opened.file, None, message)
        return
    num_read = 0
    source = ByteReader(opened, stream.tell() if opened.can_seek else 1)  # nonzero: past the header
    for part in _parts(shape, dtype.itemsize, chunk_bytes):
        data = source.read(part.num_rows * part.num_items * dtype.itemsize)
        items = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
        is_whole = len(items) == part.num_rows * part.num_items
        if part.is_inside:
            values = items.reshape(1, -1)
        else:
            values = items[: len(items) // part.num_items * part.num_items]
            values = values.reshape(-1, part.num_items)
        if values.size or part.opens:
            yield IdChunk(opened.file, part.row, values, part.opens, part.continues and is_whole)
        if not is_whole:
            cut = ("truncated", f"it should hold {' × '.join(map(str, shape))} ids")
            kind, message = source.problem or cut
            row = part.row if part.is_inside else part.row + len(values)
            num_rows = shape[0] + 1 - row if len(shape) == 2 else None
            share = 1 - (num_read + len(items)) / prod(shape)
            yield damage_chunk(kind, opened.file, row, message, num_rows=num_rows, share=share)
            return
        num_read += len(items)
    if source.read(1):
        yield problem_chunk("data after the end", opened.file, None, "only the first array is read")
    elif source.problem:
        yield damage_chunk(source.problem[0], opened.file, None, source.problem[1])


def h5_chunks(opened: OpenedSource, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    try:
        import h5py
    except ImportError:
        raise BadInput(f"{opened.file} needs the h5 extra", "pip install 'headway[h5]'") from None
    if not opened.can_seek:
        yield problem_chunk(
            "cannot seek", opened.file, None, "HDF5 needs random access: decompress it"
        )
        return
    opened.stream.seek(0)
    try:
        file = h5py.File(opened.stream, "r", rdcc_nbytes=_H5_CACHE_BYTES)
    except _H5_ERRORS as error:
        yield damage_chunk("damaged file", opened.file, None, str(error), share=1.0)
        return
    with closing(file):
        names = opened.columns or ()
        try:
            problem = _h5_problem(file, h5py.Dataset, names)
        except _H5_ERRORS as error:
            yield damage_chunk("damaged file", opened.file, None, str(error), share=1.0)
            return
        if problem is not None:
            yield problem_chunk(problem[0], opened.file, None, problem[1])
            return
        datasets = {name: file[name] for name in names}
        yield from _h5_chunks(opened.file, datasets, chunk_bytes)


def _h5_chunks(file: str, datasets: Mapping[str, Any], chunk_bytes: int) -> Iterator[Chunk]:
    ids = next(iter(datasets.values()))
    is_open = False
    for part in _parts(ids.shape, ids.dtype.itemsize, chunk_bytes):
        where = part.index if ids.ndim == 2 else part.index[1]
        try:
            values = {
                name: np.reshape(dataset[where], (part.num_rows, part.num_items))
                if dataset.shape == ids.shape
                else dataset[part.index[0]]
                for name, dataset in datasets.items()
            }
        except _H5_ERRORS as error:
            if is_open:  # end the document where it becomes unreadable
                nothing = {name: np.empty((1, 0), d.dtype) for name, d in datasets.items()}
                yield IdChunk(file, part.row, nothing, opens=True)
                is_open = False
            yield damage_chunk(
                "damaged file",
                file,
                part.row,
                f"{part.num_rows} rows are lost: {error}",
                num_rows=part.num_rows,
                share=part.num_rows * part.num_items / prod(ids.shape),
            )
            continue
        yield IdChunk(file, part.row, values, is_open, part.continues)
        is_open = part.continues


@dataclass(frozen=True)
class _Part:
    """The part of an array that one chunk covers: whole rows, or some items of a single row."""

    row: int
    """Row number, counted from 1."""
    num_rows: int
    begin: int
    num_items: int
    row_items: int
    is_inside: bool

    @property
    def opens(self) -> bool:
        return self.begin > 0

    @property
    def continues(self) -> bool:
        return self.begin + self.num_items < self.row_items

    @property
    def index(self) -> tuple[slice, slice]:
        rows = slice(self.row - 1, self.row - 1 + self.num_rows)
        return rows, slice(self.begin, self.begin + self.num_items)


def _parts(shape: tuple[int, ...], item_bytes: int, chunk_bytes: int) -> Iterator[_Part]:
    num_rows, length = shape if len(shape) == 2 else (1, shape[0])
    if not length:
        return
    if len(shape) == 2 and length * item_bytes <= chunk_bytes:
        step = chunk_bytes // (length * item_bytes)
        for row in range(0, num_rows, step):
            yield _Part(row + 1, min(step, num_rows - row), 0, length, length, is_inside=False)
        return
    step = max(1, chunk_bytes // item_bytes)
    for row in range(num_rows):
        for begin in range(0, length, step):
            num_items = min(step, length - begin)
            yield _Part(row + 1, 1, begin, num_items, length, is_inside=True)


def _npy_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    # Version 3.0 differs only in its field names, and arrays of ids have no fields.
    raise ValueError(f"version {version[0]}.{version[1]} of the format has no plain integers")


def _no_ids(shape: tuple[int, ...], dtype: np.dtype) -> str:
    if dtype.kind not in "iu":
        return f"it holds {dtype}, not integers"
    return "" if len(shape) in (1, 2) else f"it has {len(shape)} dimensions, not 1 or 2"


def _h5_problem(file: Any, kind: type[Any], names: tuple[str, ...]) -> tuple[str, str] | None:
    missing = [name for name in names if not isinstance(file.get(name), kind)]
    if missing or not names:
        found: list[str] = []
        file.visititems(lambda name, item: found.append(name) if isinstance(item, kind) else None)
        what = f"no dataset {missing[0]}" if missing else "name the dataset with the token ids"
        return "no column", f"{what}; there are: {', '.join(found[:_LISTED_DATASETS]) or 'none'}"
    ids, *others = (file[name] for name in names)
    if message := _no_ids(ids.shape, ids.dtype):
        return "not token ids", f"dataset {names[0]}: {message}"
    for name, other in zip(names[1:], others, strict=True):
        # One of another width is about the rows, not about each of their tokens.
        has_rows = ids.ndim == other.ndim == 2 and other.shape[0] == ids.shape[0]
        if other.shape != ids.shape and not has_rows:
            shapes = f"{name} is {other.shape}, {names[0]} is {ids.shape}"
            return "mask of another shape", shapes
        if other.dtype.kind not in "iub":
            return "not token ids", f"dataset {name}: it holds {other.dtype}, not integers"
    return None


def _native(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder("="), copy=False)
