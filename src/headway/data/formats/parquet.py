"""Parquet and Arrow files. Batches of rows are decoded while cutting and sent as Arrow buffers; the
processes that tokenise turn them into records.

A Parquet file is read row group by row group, so a damaged page loses at most the rest of its
group. An Arrow file is read as the stream inside it, which also works without a footer; a batch
with damaged content is the only one lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headway.data.formats.chunks import (
    CHUNK_BYTES,
    DAMAGED,
    Chunk,
    OpenedSource,
    Problem,
    SourceRecord,
    damage_chunk,
    problem_chunk,
)

_BUFFER_BYTES = 2**18
"""Read buffer per column; without it, a column is read for a whole row group at once."""
_MOST_ROWS = 2**13
"""Row limit of a batch: frequent values take almost no space in the file, but do in memory."""
_MAGIC = b"ARROW1"
_END_MARK = b"\xff\xff\xff\xff\0\0\0\0"
_ERRORS = (*DAMAGED, pa.ArrowException, MemoryError, OverflowError)
"""Errors raised when reading a damaged file. Damaged sizes ask for more memory than there is."""


@dataclass(frozen=True)
class RowChunk:
    file: str
    first_row: int
    batch: pa.RecordBatch
    opens: bool = False
    continues: bool = False

    @property
    def num_lines(self) -> int:
        return int(self.batch.num_rows)

    def records(self) -> Iterator[SourceRecord | Problem]:
        names = self.batch.schema.names
        columns = [_values(column) for column in self.batch.columns]
        for number in range(self.batch.num_rows):
            row = self.first_row + number
            value = {name: column[number] for name, column in zip(names, columns, strict=True)}
            bad = [(name, found) for name, found in value.items() if isinstance(found, _Unreadable)]
            if bad:
                name, found = bad[0]
                yield Problem(found.kind, self.file, row, f"column {name}: {found.message}")
            else:
                yield SourceRecord(value, row)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling a slice pickles the whole batch; a stream holds only the slice.
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.batch.schema) as stream:
            stream.write_batch(self.batch)
        return _unpacked, (self.file, self.first_row, sink.getvalue().to_pybytes())


def _unpacked(file: str, first_row: int, packed: bytes) -> RowChunk:
    with pa.ipc.open_stream(packed) as stream:
        return RowChunk(file, first_row, stream.read_next_batch())


def row_chunks(
    file: str, first_row: int, batch: pa.RecordBatch, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[RowChunk]:
    """A batch in chunks of about `chunk_bytes`."""
    step = max(1, batch.num_rows * chunk_bytes // max(1, batch.nbytes))
    for begin in range(0, batch.num_rows, step):
        yield RowChunk(file, first_row + begin, batch.slice(begin, step))


def parquet_chunks(opened: OpenedSource, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    if not opened.can_seek:
        yield problem_chunk(
            "cannot seek", opened.file, None, "Parquet needs random access: decompress it"
        )
        return
    opened.stream.seek(0)
    try:
        file = pq.ParquetFile(
            opened.stream,
            buffer_size=_BUFFER_BYTES,
            pre_buffer=False,
            page_checksum_verification=True,
        )
        groups = [
            _group(file.metadata.row_group(i), opened.columns)
            for i in range(file.metadata.num_row_groups)
        ]
        names = file.schema_arrow.names
    except _ERRORS as error:
        yield damage_chunk("damaged file", opened.file, None, str(error), share=1.0)
        return
    total = sum(num_rows for num_rows, _ in groups)
    if problem := column_problem(names, opened.columns):
        yield problem_chunk(problem[0], opened.file, None, problem[1], num_rows=total)
        return
    end = 1
    for number, (num_rows, row_bytes) in enumerate(groups):
        row, end = end, end + num_rows
        try:
            batches = file.iter_batches(
                batch_size=max(1, min(_MOST_ROWS, chunk_bytes // row_bytes)),
                row_groups=[number],
                columns=opened.columns,
                use_threads=False,
            )
            for batch in batches:
                yield from row_chunks(opened.file, row, batch, chunk_bytes)
                row += batch.num_rows
            lost = "" if row == end else "fewer rows than expected"
        except _ERRORS as error:
            lost = str(error)
        if lost:
            message = f"{lost}; rows {row} to {end - 1} are lost"
            yield damage_chunk(
                "damaged file",
                opened.file,
                row,
                message,
                num_rows=end - row,
                share=(end - row) / max(1, total),
            )


def arrow_chunks(opened: OpenedSource, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    if not opened.can_seek:
        yield problem_chunk(
            "cannot seek", opened.file, None, "its end must be checked: decompress it"
        )
        return
    stream = opened.stream
    stream.seek(0)
    is_file = stream.read(len(_MAGIC)) == _MAGIC
    stream.seek(8 if is_file else 0)  # a file starts with the magic, padded to 8 bytes
    try:
        reader = pa.ipc.open_stream(stream)
    except _ERRORS as error:
        yield damage_chunk("damaged file", opened.file, None, str(error), share=1.0)
        return
    if problem := column_problem(reader.schema.names, opened.columns):
        yield problem_chunk(problem[0], opened.file, None, problem[1])
        return
    row, num_failures = 1, 0
    while num_failures < 2:
        try:
            batch = _sound(reader.read_next_batch(), opened.columns)
        except StopIteration:
            break
        except _ERRORS as error:
            # Reading continues after a damaged batch, unless the next one fails too.
            num_failures += 1
            message = f"a batch of rows is lost: {error}"
            yield damage_chunk("damaged file", opened.file, row, message)
            continue
        num_failures = 0
        yield from row_chunks(opened.file, row, batch, chunk_bytes)
        row += batch.num_rows
    if message := _cut_off(opened, is_file):
        yield damage_chunk("truncated", opened.file, row, message)


def column_problem(names: Sequence[str], columns: Sequence[str] | None) -> tuple[str, str] | None:
    wanted = names if columns is None else columns
    if missing := [name for name in wanted if name not in names]:
        return "no column", f"no column {', '.join(missing)}; there are: {', '.join(names)}"
    if twice := sorted({name for name in wanted if names.count(name) > 1}):
        return "no column", f"more than one column is called {', '.join(twice)}"
    return None


def _group(group: Any, columns: Sequence[str] | None) -> tuple[int, int]:
    """Number of rows in a row group, and their average size in bytes."""
    leaves = [group.column(number) for number in range(group.num_columns)]
    num_bytes = sum(
        leaf.total_uncompressed_size
        for leaf in leaves
        if columns is None or leaf.path_in_schema.split(".")[0] in columns
    )
    return group.num_rows, max(1, num_bytes // max(1, group.num_rows))


def _sound(batch: pa.RecordBatch, columns: Sequence[str] | None) -> pa.RecordBatch:
    """The batch with only the needed columns, validated. Arrow files are loaded into memory without
    checks: damaged offsets would point outside the buffer."""
    batch = batch if columns is None else batch.select(columns)
    for column in batch.columns:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" not in str(error):  # invalid UTF-8 loses single rows only
                raise
    return batch


def _cut_off(opened: OpenedSource, is_file: bool) -> str:
    """What is missing at the end of an Arrow file that seemed complete."""
    stream = opened.stream
    end = stream.tell()
    stream.seek(max(0, end - len(_END_MARK)))
    if stream.read(len(_END_MARK)) != _END_MARK:
        return "it has no end-of-stream marker: rows may be missing"
    if bool(stream.read(1)) != is_file:
        return "there is data after its end-of-stream marker" if not is_file else "it has no footer"
    return ""


@dataclass(frozen=True)
class _Unreadable:
    kind: str
    message: str


def _values(column: pa.Array) -> list[Any]:
    if (arrays := _integer_arrays(column)) is not None:
        return arrays
    try:
        return list(column.to_pylist())
    except _ERRORS:
        return [_value(scalar) for scalar in column]


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError as error:
        return _Unreadable("not UTF-8", f"byte {error.start + 1} is not valid UTF-8")
    except _ERRORS as error:
        return _Unreadable("unreadable value", str(error))


def _integer_arrays(column: pa.Array) -> list[Any] | None:
    """Lists of integers as views of one array; None for other types."""
    kind = column.type
    is_fixed = pa.types.is_fixed_size_list(kind)
    if not (is_fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return None
    if not pa.types.is_integer(kind.value_type) or column.flatten().null_count:
        return None
    values = column.values
    if values.null_count:  # in rows that are null themselves
        values = values.fill_null(0)
    values = values.to_numpy()
    if is_fixed:
        ends = (column.offset + np.arange(len(column) + 1)) * kind.list_size
    else:
        ends = column.offsets.to_numpy()
    arrays: list[Any] = [values[a:b] for a, b in pairwise(ends.tolist())]
    if column.null_count:
        empty = column.is_null().to_pylist()
        arrays = [None if is_null else a for a, is_null in zip(arrays, empty, strict=True)]
    return arrays
