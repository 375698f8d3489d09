"""Parquet and Arrow files, whole and damaged."""

from __future__ import annotations

import datetime
import io
import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data.formats.chunks import Chunk, Problem, SourceRecord
from headway.data.formats.parquet import RowChunk, arrow_chunks, parquet_chunks, row_chunks
from headway.errors import HeadwayError
from unit.data.formats.reading import Failing, Reader, items, opened, outline, problems, records


def parquet(table: pa.Table, **how: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **how)
    return file.getvalue()


def arrow_stream(table: pa.Table, rows: int = 1000) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return file.getvalue()


def arrow_file(table: pa.Table, rows: int = 1000) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return file.getvalue()


def small_groups(table: pa.Table) -> bytes:
    return parquet(table, row_group_size=7, data_page_size=100)


FORMATS: list[tuple[Reader, Callable[[pa.Table], bytes]]] = [
    (parquet_chunks, parquet),
    (parquet_chunks, small_groups),
    (arrow_chunks, arrow_stream),
    (arrow_chunks, arrow_file),
    (arrow_chunks, lambda table: arrow_stream(table, 5)),
]
formats = pytest.mark.parametrize(("reader", "write"), FORMATS)

SCHEMA = pa.schema(
    {
        "text": pa.string(),
        "large": pa.large_string(),
        "number": pa.float64(),
        "ids": pa.list_(pa.int32()),
        "large_ids": pa.large_list(pa.uint16()),
        "pair": pa.list_(pa.int64(), 2),
        "words": pa.list_(pa.string()),
        "meta": pa.struct({"a": pa.int64(), "when": pa.date32()}),
    }
)
small_integers = st.lists(st.integers(0, 60_000), max_size=5)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "text": st.text(max_size=30) | st.none(),
            "large": st.text(max_size=30),
            "number": st.floats(allow_nan=False) | st.none(),
            "ids": small_integers | st.none(),
            "large_ids": small_integers,
            "pair": st.lists(st.integers(0, 9), min_size=2, max_size=2) | st.none(),
            "words": st.lists(st.text(max_size=3) | st.none(), max_size=3),
            "meta": st.fixed_dictionaries({"a": st.integers(0, 9), "when": st.dates()}) | st.none(),
        }
    ),
    max_size=12,
)


def listed(value: dict[str, Any]) -> dict[str, Any]:
    """With lists in place of arrays, which have to be arrays of the right kind."""
    for name, dtype in {"ids": np.int32, "large_ids": np.uint16, "pair": np.int64}.items():
        if name in value and value[name] is not None:
            assert isinstance(value[name], np.ndarray)
            assert value[name].dtype == dtype
            value[name] = value[name].tolist()
    return value


@formats
@settings(max_examples=25)
@given(rows=rows, size=st.integers(1, 2000))
def test_what_was_written_is_read_back_whatever_the_chunks(
    reader: Reader, write: Callable[[pa.Table], bytes], rows: list[dict[str, Any]], size: int
) -> None:
    raw = write(pa.Table.from_pylist(rows, SCHEMA))
    found = records(reader(opened(raw), chunk_bytes=size))
    assert [line for line, _ in found] == list(range(1, len(rows) + 1))
    assert [listed(value) for _, value in found] == rows
    few = records(reader(opened(raw, columns=("meta", "text"))))
    assert [value for _, value in few] == [
        {"meta": row["meta"], "text": row["text"]} for row in rows
    ]


TEXTS = pa.table({"id": range(1000), "text": [f"text {number} " * 20 for number in range(1000)]})


@formats
def test_chunks_are_about_as_large_as_asked_for(reader: Reader, write: Any) -> None:
    chunks = list(reader(opened(write(TEXTS)), chunk_bytes=10_000))
    lengths = [len(pickle.dumps(chunk)) for chunk in chunks]
    assert max(lengths) < 20_000
    assert sum(chunk.num_lines for chunk in chunks) == 1000


def test_values_that_occur_often_do_not_fill_the_memory() -> None:
    table = pa.table({"text": ["x" * 10_000] * 20_000})
    raw = parquet(table)
    assert len(raw) < 100_000
    before = pa.total_allocated_bytes()
    for chunk in parquet_chunks(opened(raw)):
        assert chunk.num_lines * 10_000 < 2**21
        assert pa.total_allocated_bytes() - before < 2**27


def most_bytes(chunks: Iterator[Chunk]) -> int:
    """What was in use at most: by Arrow between two chunks, and by Python at any time."""
    before, most = pa.total_allocated_bytes(), 0
    tracemalloc.start()
    for _ in chunks:
        most = max(most, pa.total_allocated_bytes() - before)
    most += tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_a_large_row_group_is_not_read_whole() -> None:
    made = np.random.default_rng(1)
    table = pa.table({"text": [made.bytes(1000).hex() for _ in range(30_000)]})
    raw = parquet(table, row_group_size=10**6, use_dictionary=False)
    del table
    assert most_bytes(parquet_chunks(opened(raw))) < 2**23 < len(raw) / 6


def test_arrow_batches_are_read_one_by_one() -> None:
    raw = arrow_stream(pa.table({"text": ["x" * 1000] * 30_000}), rows=500)
    assert most_bytes(arrow_chunks(opened(raw))) < 2**22 < len(raw) / 6


def test_lists_with_holes_stay_lists() -> None:
    raw = parquet(pa.table({"ids": pa.array([[1, None], [2]], pa.list_(pa.int32()))}))
    assert [value for _, value in records(parquet_chunks(opened(raw)))] == [
        {"ids": [1, None]},
        {"ids": [2]},
    ]


def test_slices_give_their_own_rows_without_being_sent() -> None:
    rows = [{"ids": [n] * n, "pair": [n, n]} for n in range(9)]
    schema = pa.schema({"ids": pa.list_(pa.int32()), "pair": pa.list_(pa.int64(), 2)})
    (batch,) = pa.Table.from_pylist(rows, schema).to_batches()
    found = [item for chunk in row_chunks("a file", 1, batch, 60) for item in chunk.records()]
    assert [item.line for item in found] == list(range(1, 10))
    assert [listed(item.value) for item in found if isinstance(item, SourceRecord)] == rows


def no_utf8(*values: bytes) -> pa.Array:
    binary = pa.array(values, pa.binary())
    return pa.StringArray.from_buffers(len(binary), *binary.buffers()[1:])


@formats
def test_invalid_utf8_loses_only_its_row(reader: Reader, write: Any) -> None:
    raw = write(pa.table({"text": no_utf8(b"a", b"caf\xe9", b"c")}))
    found = items(reader(opened(raw)))
    assert found == [
        SourceRecord({"text": "a"}, 1),
        Problem("not UTF-8", "a file", 2, "column text: byte 4 is not valid UTF-8"),
        SourceRecord({"text": "c"}, 3),
    ]


def test_a_value_python_cannot_hold_loses_only_its_row() -> None:
    times = pa.array([0, 2**62], pa.timestamp("s"))
    (batch,) = pa.table({"when": times}).to_batches()
    assert outline(row_chunks("a file", 1, batch)) == [  # type: ignore[arg-type]
        {"when": datetime.datetime(1970, 1, 1)},
        ("unreadable value", 2),
    ]


@formats
def test_a_column_that_is_not_there_is_one_problem(reader: Reader, write: Any) -> None:
    (problem,) = problems(reader(opened(write(TEXTS), columns=("text", "txt"))))
    assert (problem.kind, problem.line) == ("no column", None)
    assert problem.message == "no column txt; there are: id, text"
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    (problem,) = problems(reader(opened(write(twice))))
    assert problem.message == "more than one column is called a"


@formats
def test_a_file_that_cannot_seek_is_one_problem(reader: Reader, write: Any) -> None:
    (problem,) = problems(reader(opened(write(TEXTS), can_seek=False)))
    assert problem.kind == "cannot seek"


@pytest.mark.parametrize("raw", [b"", b"text", b"PAR1" * 10, b"ARROW1\0\0", b"\xff" * 8])
@pytest.mark.parametrize("reader", [parquet_chunks, arrow_chunks])
def test_a_file_that_is_neither_is_one_problem(reader: Reader, raw: bytes) -> None:
    (problem,) = problems(reader(opened(raw)))
    assert (problem.kind, problem.line) == ("damaged file", None)


def test_a_damaged_footer_is_one_problem() -> None:
    raw = parquet(TEXTS)
    for broken in (raw[:-1], raw[:-100], raw[:-60] + bytes(50) + raw[-10:]):
        (problem,) = problems(parquet_chunks(opened(broken)))
        assert (problem.kind, problem.line) == ("damaged file", None)


@pytest.mark.parametrize("compression", ["NONE", "ZSTD"])
def test_a_damaged_page_costs_the_rest_of_its_row_group(compression: str) -> None:
    raw = bytearray(
        parquet(
            TEXTS,
            row_group_size=250,
            data_page_size=2000,
            write_batch_size=10,
            write_page_checksum=True,
            use_dictionary=False,
            compression=compression,
            write_statistics=False,  # damage to them would do no harm
        )
    )
    texts = pq.ParquetFile(io.BytesIO(raw)).metadata.row_group(1).column(1)
    raw[texts.data_page_offset + texts.total_compressed_size * 3 // 4] ^= 0xFF
    found = items(parquet_chunks(opened(bytes(raw)), chunk_bytes=3000))
    (problem,) = (item for item in found if isinstance(item, Problem))
    assert problem.kind == "damaged file"
    assert problem.line is not None
    assert 350 < problem.line < 450
    assert f"rows {problem.line} to 500 are lost" in problem.message
    lines = [item.line for item in found if isinstance(item, SourceRecord)]
    assert lines == [*range(1, problem.line), *range(501, 1001)]
    values = [item.value["id"] for item in found if isinstance(item, SourceRecord)]
    assert values == [line - 1 for line in lines]


@pytest.mark.parametrize("write", [arrow_stream, arrow_file])
def test_a_truncated_stream_gives_what_is_there(write: Any) -> None:
    raw = write(TEXTS, rows=100)
    whole = items(arrow_chunks(opened(raw)))
    for length in range(400, len(raw), 1777):
        *found, last = items(arrow_chunks(opened(raw[:length])))
        kept = [item for item in found if isinstance(item, SourceRecord)]
        assert isinstance(last, Problem)
        assert last.line in (None, len(kept) + 1)
        assert kept == whole[: len(kept)]
        assert len(kept) >= 1000 * length / len(raw) - 150


def test_a_stream_cut_between_two_batches_is_noticed() -> None:
    raw = arrow_stream(TEXTS, rows=100)
    end = raw.rindex(b"\xff\xff\xff\xff", 0, len(raw) - 8)  # where the last batch begins
    *found, last = items(arrow_chunks(opened(raw[:end])))
    assert len(found) == 900
    assert (last.kind, last.line) == ("truncated", 901)  # type: ignore[union-attr]
    *found, last = items(arrow_chunks(opened(raw + raw)))
    assert len(found) == 1000
    assert "data after its end-of-stream marker" in last.message  # type: ignore[union-attr]


def test_a_damaged_batch_is_left_out_alone() -> None:
    raw = bytearray(arrow_stream(pa.table({"text": ["abcdefgh"] * 300}), rows=100))
    offsets = np.arange(0, 808, 8, dtype=np.int32).tobytes()
    second = raw.index(offsets, raw.index(offsets) + 1)
    raw[second + 40 : second + 44] = b"\xff\xff\xff\x7f"
    found = outline(arrow_chunks(opened(bytes(raw))))
    assert found == [{"text": "abcdefgh"}] * 100 + [("damaged file", 101)] + found[:100]


@pytest.mark.parametrize("write", [parquet, small_groups, arrow_stream, arrow_file])
def test_no_flipped_bit_makes_reading_raise(write: Any) -> None:
    how = {"write_page_checksum": True} if write is parquet else {}
    raw = write(TEXTS.slice(0, 100), **how)
    reader = parquet_chunks if write in (parquet, small_groups) else arrow_chunks
    made = np.random.default_rng(1)
    for _ in range(60):
        broken = bytearray(raw)
        broken[made.integers(len(raw))] ^= 1 << made.integers(8)
        found = items(reader(opened(bytes(broken))))
        assert len(found) > 0


@formats
def test_a_failing_disk_is_not_taken_for_damage(reader: Reader, write: Any) -> None:
    raw = write(TEXTS)
    for share in (0.2, 0.5, 0.9):
        with pytest.raises(HeadwayError, match="the disk is gone"):
            list(reader(opened(Failing(raw, int(len(raw) * share)))))


def test_a_slice_is_pickled_without_the_whole() -> None:
    (batch,) = TEXTS.to_batches()
    assert len(pickle.dumps(RowChunk("a file", 1, batch.slice(500, 2)))) < 2000
