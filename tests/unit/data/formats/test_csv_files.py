"""Comma and tab separated values: read back as the csv module wrote them, whatever the chunks."""

from __future__ import annotations

import csv
import gzip
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data.formats.csv_files import csv_chunks, tsv_chunks
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

fields = st.text(
    st.sampled_from('a,"\n\r\té😀 ') | st.characters(codec="utf-8", exclude_characters="\0"),
    max_size=12,
)
tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(fields, min_size=width, max_size=width), max_size=12)
)


def written(
    rows: list[list[str]], delimiter: str, end: str, quoting: int
) -> tuple[bytes, list[int]]:
    """The file, and the line each row starts on."""
    if any("\r" in field for row in rows for field in row):
        quoting = csv.QUOTE_ALL  # the csv module writes them bare, and cannot read them back then
    names = [f"c{number}" for number in range(len(rows[0]) if rows else 1)]
    text, lines = io.StringIO(newline=""), []
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting)  # type: ignore[arg-type]
    for row in [names, *rows]:
        lines.append(1 + text.getvalue().count("\n"))
        writer.writerow(row)
    return text.getvalue().encode(), lines[1:]


@given(
    rows=tables,
    reader=st.sampled_from([(csv_chunks, ","), (tsv_chunks, "\t")]),
    end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    size=st.integers(1, 60),
    is_cut=st.booleans(),
)
def test_what_was_written_is_read_back(
    rows: list[list[str]], reader: tuple, end: str, quoting: int, size: int, is_cut: bool
) -> None:
    raw, lines = written(rows, reader[1], end, quoting)
    raw = raw.removesuffix(end.encode()) if is_cut else raw
    wanted = [
        (line, {f"c{number}": field for number, field in enumerate(row)})
        for line, row in zip(lines, rows, strict=True)
    ]
    assert records(csv_chunks(opened(raw), delimiter=reader[1], chunk_bytes=size)) == wanted
    assert records(reader[0](opened(raw, can_seek=False))) == wanted


BROKEN = (
    b"id,text\r\n"
    b'1,"one, ""quoted""\nin two lines"\r\n'  # 2
    b"2\n"  # 4
    b"3,three,3\n"
    b"\n"
    b'4,5" pipe\n'  # a quote inside a field is text
    b'5,"five" and more\n'  # 8
    b'6,"six"\n'
    b'7,"seven\n'  # 10: not closed on its line
    b"8,eight\n"
    b'9,"nine"\n'
    b"10,\xe9\n"  # 13
    b"11,\0\n"
    b"12,a\rb\n"
    b'13,"thirteen"\n'
    b'14,"fourteen'  # 17: not closed at all
)


@pytest.mark.parametrize("size", [1, 5, 17, 40, 100, 2**20])
def test_each_kind_of_broken_row_is_located_and_the_others_are_read(size: int) -> None:
    assert outline(csv_chunks(opened(BROKEN), chunk_bytes=size)) == [
        {"id": "1", "text": 'one, "quoted"\nin two lines'},
        ("wrong number of fields", 4),
        ("wrong number of fields", 5),
        {"id": "4", "text": '5" pipe'},
        ("wrong quotes", 8),
        {"id": "6", "text": "six"},
        ("wrong quotes", 10),
        {"id": "8", "text": "eight"},
        {"id": "9", "text": "nine"},
        ("not UTF-8", 13),
        ("NUL byte", 14),
        ("wrong row", 15),
        {"id": "13", "text": "thirteen"},
        ("unclosed quote", 17),
    ]


@pytest.mark.parametrize("size", [1, 7, 50, 2**20])
def test_after_a_quote_that_is_never_closed_rows_are_read_again(size: int) -> None:
    rows = [f"{number},row {number}" for number in range(200)]
    raw = "id,text\n" + "\n".join([*rows[:3], 'x,"y', *rows[3:]])
    found = outline(csv_chunks(opened(raw.encode()), chunk_bytes=size, record_bytes=300))
    assert found.pop(3) == ("unclosed quote", 5)
    assert found == [{"id": str(number), "text": f"row {number}"} for number in range(200)]


def test_the_line_is_that_of_the_quote_and_not_of_the_row() -> None:
    raw = b'a,b\n1,2\n"x\ny","z\n3,4\n'
    assert outline(csv_chunks(opened(raw))) == [
        {"a": "1", "b": "2"},
        ("unclosed quote", 4),
        {"a": "3", "b": "4"},
    ]


def test_a_line_that_is_too_long_is_skipped() -> None:
    raw = b"a,b\n1,2\n" + b"x" * 1000 + b"\n3,4\n" + b'"' + b"y" * 1000
    found = outline(csv_chunks(opened(raw), chunk_bytes=10, record_bytes=100))
    assert found == [{"a": "1", "b": "2"}, ("too long", 3), {"a": "3", "b": "4"}, ("too long", 5)]


@pytest.mark.parametrize(
    ("header", "kind", "words"),
    [
        (b"a,b,a", "no header", "called a"),
        (b"a,,b", "no header", "column 2"),
        (b'"a,b', "no header", "names"),
        (b"a,\xe9", "not UTF-8", "0xe9"),
        (b"a,b\0", "NUL byte", "b"),
        (b"b,c", "no column", "no column a; there are: b, c"),
    ],
)
def test_a_useless_header_is_one_problem(header: bytes, kind: str, words: str) -> None:
    (problem,) = items(csv_chunks(opened(header + b"\n1,2\n" * 5, columns=("a",))))
    assert problem.kind == kind  # type: ignore[union-attr]
    assert words in problem.message  # type: ignore[union-attr]
    assert problem.line == 1


def test_only_the_columns_asked_for_are_kept() -> None:
    raw = b'\xef\xbb\xbf\n"a\nb",c,d\n1,2,3\n'
    found = records(csv_chunks(opened(raw, columns=("d", "a\nb"))))
    assert found == [(4, {"d": "3", "a\nb": "1"})]


def test_fields_may_be_longer_than_the_csv_modules_limit() -> None:
    long = "x\n" * 300_000
    assert records(csv_chunks(opened(f'a\n"{long}"\nlast\n'.encode()))) == [
        (2, {"a": long}),
        (300_003, {"a": "last"}),
    ]


@pytest.mark.parametrize("raw", [b"", b"\n\n", b"a,b\n"])
def test_without_rows_there_is_nothing(raw: bytes) -> None:
    assert items(csv_chunks(opened(raw))) == []


def test_damaged_compression_is_located() -> None:
    raw = b"a,b\n" + b"".join(b'%d,"x\ny"\n' % (number**3) for number in range(20_000))
    packed = gzip.compress(raw)
    stream = gzip.GzipFile(fileobj=io.BytesIO(packed[: len(packed) // 2]))
    *found, last = items(csv_chunks(opened(stream, can_seek=False)))  # type: ignore[arg-type]
    assert last.kind == "damaged compression"  # type: ignore[union-attr]
    assert last.line == 2 + 2 * len(found)
    assert len(found) > 5_000
    head = gzip.GzipFile(fileobj=io.BytesIO(packed[:12]))
    (problem,) = problems(csv_chunks(opened(head, can_seek=False)))  # type: ignore[arg-type]
    assert problem.kind == "damaged compression"


def test_a_failing_disk_is_not_taken_for_damage() -> None:
    with pytest.raises(HeadwayError, match="the disk is gone"):
        list(csv_chunks(opened(Failing(b"a,b\n" + b"1,2\n" * 100_000, 300_000))))


@pytest.mark.parametrize(
    "block", [b'1,"' + b'word ""w"" ' * 300 + b'"\n', b'1,"x' + b" word" * 800 + b"\n"]
)
def test_memory_does_not_grow_with_the_file(block: bytes) -> None:
    sizes_bytes = []
    for total in (2**21, 2**23):
        stream = Endless(b"a,b\n", block, total // len(block))
        chunks = csv_chunks(opened(stream, can_seek=False), chunk_bytes=2**16)  # type: ignore[arg-type]
        sizes_bytes.append(peak_bytes(chunks)[0])
    assert sizes_bytes[1] < 1.2 * sizes_bytes[0] + 2**16
