"""Files called .json, in the three shapes they come in."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data.formats.chunks import OpenedSource
from headway.data.formats.json_files import json_chunks
from headway.data.formats.text_and_jsonl import JsonLineChunk
from headway.errors import HeadwayError
from unit.data.formats.reading import (
    Endless,
    Failing,
    items,
    opened,
    outline,
    peak_bytes,
    problems,
    records,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
objects = st.dictionaries(st.text(max_size=4), values, max_size=3)
sizes = st.integers(1, 60)


@given(
    rows=st.lists(objects, max_size=8),
    indent=st.sampled_from([None, 0, 2]),
    is_ascii=st.booleans(),
    size=sizes,
    blanks=st.sampled_from(["", " ", "\r\n\n"]),
)
def test_an_array_is_read_back_whatever_the_chunks(
    rows: list[dict[str, Any]], indent: int | None, is_ascii: bool, size: int, blanks: str
) -> None:
    text = blanks + json.dumps(rows, indent=indent, ensure_ascii=is_ascii) + blanks
    raw = text.encode()
    found = records(json_chunks(opened(raw), chunk_bytes=size))
    assert [value for _, value in found] == rows
    assert found == records(json_chunks(opened(raw, can_seek=False)))
    if indent == 2 and rows:
        starts = [number for number, line in enumerate(text.split("\n"), 1) if line[:3] == "  {"]
        assert [line for line, _ in found] == starts


@given(row=objects, indent=st.sampled_from([None, 2]), size=sizes)
def test_a_single_object_is_one_record(row: dict[str, Any], indent: int | None, size: int) -> None:
    raw = json.dumps(row, indent=indent).encode()
    assert records(json_chunks(opened(raw), chunk_bytes=size)) == [(1, row)]


@pytest.mark.parametrize("can_seek", [True, False])
@pytest.mark.parametrize("first", [b'{"a": 0}', b'{"a": "broken', b'{"a": ' + b" " * 100 + b"0}"])
def test_json_lines_are_recognised(first: bytes, can_seek: bool) -> None:
    raw = b"\xef\xbb\xbf\n" + first + b"".join(b'\n{"a": %d}' % number for number in range(1, 9))
    chunks = list(json_chunks(opened(raw, can_seek=can_seek), chunk_bytes=80))
    assert all(isinstance(chunk, JsonLineChunk) for chunk in chunks)
    found = outline(iter(chunks))
    assert found[0] == ({"a": 0} if b"0}" in first else ("not JSON", 2))
    assert found[1:] == [{"a": number} for number in range(1, 9)]


def test_an_object_with_an_object_on_a_line_is_one_object() -> None:
    raw = b'{"data": [\n{"x": 1}\n]}'
    assert records(json_chunks(opened(raw))) == [(1, {"data": [{"x": 1}]})]


BROKEN = (
    b"[\n"
    b'  {"a": 1},\n'
    b'  {"a": "un"quoted"},\n'  # 3
    b"  {\n"
    b'    "a": [\n'
    b'      {"nested": 1},\n'
    b'      {"nested": nothing},\n'  # 7
    b'      {"nested": 3}\n'
    b"    ]\n"
    b"  },\n"
    b'  {"a": 2},\n'
    b"  17,\n"  # 12
    b'  {"a": "\xe9"},\n'  # 13
    b'  {"a": 3}\n'
    b'  {"a": 4},\n'  # 15: no comma before
    b'  {"a": 5,\n'
    b'  {"a": 6},\n'  # 17: the one before is not closed
    b'  {"a": 7},\n'
    b'  {"a": 1' + b"0" * 5000 + b"},\n"  # 19
    b'  {"a": 8}\n'
    b"]\n"
    b"[]"  # 22
)


@pytest.mark.parametrize("size", [1, 10, 33, 100, 2**20])
def test_each_kind_of_broken_element_is_located_and_the_others_are_read(size: int) -> None:
    assert outline(json_chunks(opened(BROKEN), chunk_bytes=size)) == [
        {"a": 1},
        ("not JSON", 3),
        ("not JSON", 7),
        {"a": 2},
        ("not an object", 12),
        ("not UTF-8", 13),
        {"a": 3},
        ("not JSON", 15),
        {"a": 4},
        ("not JSON", 17),
        {"a": 6},
        {"a": 7},
        ("not JSON", 19),
        {"a": 8},
        ("text after the end", 22),
    ]


def test_the_message_says_where_reading_continues_or_that_the_rest_is_lost() -> None:
    (problem,) = problems(json_chunks(opened(b'[\n{"a": x},\n\n{"a": 1}]')))
    assert problem.message == "Expecting value; reading continues at line 4"
    (problem,) = problems(json_chunks(opened(b'[{"a": 1},\n {"a": 2}, {"a": x}, {"a": 3}]')))
    assert (problem.line, problem.message) == (2, "Expecting value; the rest is lost")


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (b'[{"a": 1},\n{"a": 2', [{"a": 1}, ("truncated", 2)]),
        (b'[{"a": 1},\n{"a": "unfinished \\u00', [{"a": 1}, ("truncated", 2)]),
        (b'[{"a": 1},\n{"a": tr', [{"a": 1}, ("truncated", 2)]),
        (b'[{"a": 1},\n', [{"a": 1}, ("truncated", 2)]),
        (b'[{"a": 1}\n', [{"a": 1}, ("truncated", 2)]),
        (b"[", [("truncated", 1)]),
        (b'{"a":\n{"b": 1', [("truncated", 2)]),
        (b'{"a":\n1} x', [{"a": 1}, ("text after the end", 2)]),
        (b"17", [("not an object", 1)]),
        (b'"text"', [("not an object", 1)]),
        (b"\n\nnothing", [("not JSON", 3)]),
        (b"\xff\xfe[\0", [("not JSON", 1)]),
        (b'[{"a": 1}, ]', [{"a": 1}]),
        (b"[" * 100_000, [("not JSON", 1)]),
        (b"", []),
        (b" \n", []),
        (b"[]", []),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 2**20])
def test_a_file_that_is_not_an_array_and_one_that_is_cut_off(
    raw: bytes, wanted: list[Any], size: int
) -> None:
    assert outline(json_chunks(opened(raw), chunk_bytes=size)) == wanted


def test_an_element_that_is_too_long_is_skipped() -> None:
    raw = b'[\n{"a": 1},\n{"a": "' + b"x" * 5000 + b'"},\n{"a": 2}\n]'
    found = outline(json_chunks(opened(raw), chunk_bytes=100, record_bytes=1000))
    assert found == [{"a": 1}, ("too long", 3), {"a": 2}]


def _gzipped(raw: bytes, keep: float) -> OpenedSource:
    packed = gzip.compress(raw)
    stream = gzip.GzipFile(fileobj=io.BytesIO(packed[: int(len(packed) * keep)]))
    return opened(stream, can_seek=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("begin", [b"[\n", b'{"a":\n[\n'])
def test_damaged_compression_is_located(begin: bytes) -> None:
    raw = begin + b",\n".join(b'{"a": %d}' % number**5 for number in range(50_000))
    *found, last = items(json_chunks(_gzipped(raw, 0.5)))
    assert last.kind == "damaged compression"  # type: ignore[union-attr]
    assert begin != b"[\n" or last.line == len(found) + 2 > 10_000
    assert items(json_chunks(_gzipped(raw, 0.0001)))[0].kind == "damaged compression"  # type: ignore[union-attr]


def test_a_failing_disk_is_not_taken_for_damage() -> None:
    for raw in (b'[{"a": 1},' + b'{"a": 1},' * 100_000, b'{"a": 1}\n' * 100_000):
        with pytest.raises(HeadwayError, match="the disk is gone"):
            list(json_chunks(opened(Failing(raw, 300_000))))


@pytest.mark.parametrize(
    "block",
    [
        b'{"text": "' + b"word " * 100 + b'"},\n',
        b'{"text": "' + b"word " * 100 + b'"},',
        b'{"text": "' + b"word " * 100 + b'"\n',
    ],
)
def test_memory_does_not_grow_with_the_file(block: bytes) -> None:
    sizes_bytes = []
    for times in (500, 4000):
        stream = opened(Endless(b"[\n", block, times, b"{}]"), can_seek=False)  # type: ignore[arg-type]
        sizes_bytes.append(peak_bytes(json_chunks(stream, chunk_bytes=2**14))[0])
    assert sizes_bytes[1] < 1.2 * sizes_bytes[0] + 2**16
