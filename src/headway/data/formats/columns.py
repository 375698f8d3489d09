"""Parquet and Arrow files. Batches of rows are decoded while cutting, and travel as Arrow buffers;
rows are made of them by the processes that tokenise.

A Parquet file is read row group by row group, so that a damaged page costs no more than what is
behind it in its group. An Arrow file is read as the stream that is inside it, which works without
its footer too; a batch whose content is damaged is left out alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headway.data.formats.chunks import CHUNK_BYTES, DAMAGED, Chunk, Opened, Problem, Record, broken

_BUFFER_BYTES = 2**18
"""Of each column; without it a column is read whole, for all of a row group at once."""
_MOST_ROWS = 2**13
"""Of a batch: values that occur often take next to nothing in the file, but not in memory."""
_MAGIC = b"ARROW1"
_END_MARK = b"\xff\xff\xff\xff\0\0\0\0"
_ERRORS = (*DAMAGED, pa.ArrowException, MemoryError, OverflowError)
"""Damaged sizes ask for more memory than there is."""


@dataclass(frozen=True)
class Rows:
    file: str
    first_row: int
    batch: pa.RecordBatch
    opens: bool = False
    continues: bool = False

    @property
    def num_lines(self) -> int:
        return int(self.batch.num_rows)

    def records(self) -> Iterator[Record | Problem]:
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
                yield Record(value, row)

    def __reduce__(self) -> tuple[Any, ...]:
        # A slice pickles all that it is a slice of; a stream holds only the slice.
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.batch.schema) as stream:
            stream.write_batch(self.batch)
        return _unpacked, (self.file, self.first_row, sink.getvalue().to_pybytes())


def _unpacked(file: str, first_row: int, packed: bytes) -> Rows:
    with pa.ipc.open_stream(packed) as stream:
        return Rows(file, first_row, stream.read_next_batch())


def row_chunks(
    file: str, first_row: int, batch: pa.RecordBatch, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Rows]:
    """A batch in chunks of about `chunk_bytes`."""
    step = max(1, batch.num_rows * chunk_bytes // max(1, batch.nbytes))
    for begin in range(0, batch.num_rows, step):
        yield Rows(file, first_row + begin, batch.slice(begin, step))


def parquet_chunks(opened: Opened, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    if not opened.can_seek:
        yield broken("cannot seek", opened.file, None, "Parquet is read from its end: unpack it")
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
        yield broken("damaged file", opened.file, None, str(error))
        return
    if problem := column_problem(names, opened.columns):
        yield broken(problem[0], opened.file, None, problem[1])
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
            lost = "" if row == end else "fewer rows than there should be"
        except _ERRORS as error:
            lost = str(error)
        if lost:
            message = f"{lost}; rows {row} to {end - 1} are lost"
            yield broken("damaged file", opened.file, row, message)


def arrow_chunks(opened: Opened, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    if not opened.can_seek:
        yield broken("cannot seek", opened.file, None, "its end has to be looked at: unpack it")
        return
    stream = opened.stream
    stream.seek(0)
    is_file = stream.read(len(_MAGIC)) == _MAGIC
    stream.seek(8 if is_file else 0)  # a file begins with the magic, filled up to 8 bytes
    try:
        reader = pa.ipc.open_stream(stream)
    except _ERRORS as error:
        yield broken("damaged file", opened.file, None, str(error))
        return
    if problem := column_problem(reader.schema.names, opened.columns):
        yield broken(problem[0], opened.file, None, problem[1])
        return
    row, num_failures = 1, 0
    while num_failures < 2:
        try:
            batch = _sound(reader.read_next_batch(), opened.columns)
        except StopIteration:
            break
        except _ERRORS as error:
            # What is behind a damaged batch is read, unless that fails too.
            num_failures += 1
            message = f"a batch of rows is lost: {error}"
            yield broken("damaged file", opened.file, row, message)
            continue
        num_failures = 0
        yield from row_chunks(opened.file, row, batch, chunk_bytes)
        row += batch.num_rows
    if message := _cut_off(opened, is_file):
        yield broken("truncated", opened.file, row, message)


def column_problem(names: Sequence[str], columns: Sequence[str] | None) -> tuple[str, str] | None:
    wanted = names if columns is None else columns
    if missing := [name for name in wanted if name not in names]:
        return "no column", f"no column {', '.join(missing)}; there are: {', '.join(names)}"
    if twice := sorted({name for name in wanted if names.count(name) > 1}):
        return "no column", f"more than one column is called {', '.join(twice)}"
    return None


def _group(group: Any, columns: Sequence[str] | None) -> tuple[int, int]:
    """Rows of a row group, and the bytes that each takes on average."""
    leaves = [group.column(number) for number in range(group.num_columns)]
    num_bytes = sum(
        leaf.total_uncompressed_size
        for leaf in leaves
        if columns is None or leaf.path_in_schema.split(".")[0] in columns
    )
    return group.num_rows, max(1, num_bytes // max(1, group.num_rows))


def _sound(batch: pa.RecordBatch, columns: Sequence[str] | None) -> pa.RecordBatch:
    """The columns that are needed. An Arrow file is taken into memory as it is: damaged offsets
    would reach outside of it."""
    batch = batch if columns is None else batch.select(columns)
    for column in batch.columns:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" not in str(error):  # that costs single rows only
                raise
    return batch


def _cut_off(opened: Opened, is_file: bool) -> str:
    """What is missing at the end of an Arrow file that seemed to be read whole."""
    stream = opened.stream
    end = stream.tell()
    stream.seek(max(0, end - len(_END_MARK)))
    if stream.read(len(_END_MARK)) != _END_MARK:
        return "it ends without an end mark: rows may be missing"
    if bool(stream.read(1)) != is_file:
        return "there is more behind its end mark" if not is_file else "it has no footer"
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
        return _Unreadable("not UTF-8", f"byte {error.start + 1} is no UTF-8")
    except _ERRORS as error:
        return _Unreadable("unreadable value", str(error))


def _integer_arrays(column: pa.Array) -> list[Any] | None:
    """For lists of integers: views of one array."""
    kind = column.type
    is_fixed = pa.types.is_fixed_size_list(kind)
    if not (is_fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return None
    if not pa.types.is_integer(kind.value_type) or column.flatten().null_count:
        return None
    values = column.values
    if values.null_count:  # inside rows that are null themselves
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
