"""Text and JSON lines: any cut gives the same documents, and damage is located."""

from __future__ import annotations

import gzip
import io
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.data.formats.chunks import OpenedSource, Problem
from headway.data.formats.text_and_jsonl import (
    ByteReader,
    json_line_chunks,
    json_lines,
    text_chunks,
)
from headway.errors import HeadwayError
from unit.data.formats.reading import (
    Endless,
    Failing,
    documents,
    items,
    opened,
    outline,
    peak_bytes,
    records,
)

SEPARATOR = "<|endoftext|>"
BLANK = " \t\n\r\f\v"
_WORDS = ["a", "bc", "é", "😀", " ", "\t", "\r", "\n", "\r\n", "\n\n", "\n \n", "\f", "x" * 30]
blank_texts = st.lists(st.sampled_from(_WORDS), max_size=120).map("".join)
separated_texts = st.lists(
    st.sampled_from([*_WORDS, SEPARATOR, f"\n{SEPARATOR}\n", f" {SEPARATOR} \r\n"]), max_size=120
).map(lambda words: f"{SEPARATOR}\n" + "".join(words))
cuts = st.lists(st.integers(0, 800), max_size=5)
sizes = st.integers(1, 90)


def expected(text: str, is_separator: str) -> list[tuple[int, str]]:
    """Line and text of each document: the definition, line by line."""
    found, held, start = [], [], 0
    for number, line in enumerate([*text.split("\n"), is_separator], start=1):
        stripped = line.strip(" \t\r") if is_separator else line.strip(BLANK)
        if stripped == is_separator:
            found.append((start, "\n".join(held).rstrip(BLANK)))
            held = []
        elif held or line.strip(BLANK):
            start = start if held else number
            held.append(line.removesuffix("\r"))
    return [(line, document) for line, document in found if document]


def pieces(data: bytes, at: list[int]) -> list[OpenedSource]:
    bounds = sorted({0, *(cut % (len(data) + 1) for cut in at)})
    ends = [*bounds[1:], None]
    return [opened(data, begin=begin, end=end) for begin, end in zip(bounds, ends, strict=True)]


@pytest.mark.parametrize("separator", ["", SEPARATOR])
@given(data=st.data())
def test_text_is_read_as_defined_whatever_the_chunks(separator: str, data: st.DataObject) -> None:
    text = data.draw(separated_texts if separator else blank_texts)
    raw = text.encode()
    chunks = text_chunks(opened(raw), chunk_bytes=data.draw(sizes))
    assert records(chunks) == expected(text, separator)
    chunks = text_chunks(opened(raw, can_seek=False), chunk_bytes=data.draw(sizes))
    assert records(chunks) == expected(text, separator)


@pytest.mark.parametrize("separator", ["", SEPARATOR])
@given(data=st.data())
def test_pieces_of_a_text_give_the_documents_of_the_whole(
    separator: str, data: st.DataObject
) -> None:
    text = data.draw(separated_texts if separator else blank_texts)
    small = {
        "chunk_bytes": data.draw(sizes),
        "piece_bytes": data.draw(st.integers(100, 200)),
        "deciding_bytes": data.draw(st.integers(20, 200)),
    }
    chunks = (
        chunk
        for piece in pieces(text.encode(), data.draw(cuts))
        for chunk in text_chunks(piece, **small)
    )
    joined = ["".join(parts).strip(BLANK) for parts in documents(chunks)]
    # White space at the ends of a document that is passed on in pieces may stay.
    wanted = [document.strip(BLANK) for _, document in expected(text, separator)]
    assert [document for document in joined if document] == wanted


def test_a_separator_that_ends_a_file_without_a_newline_is_none_of_its_text() -> None:
    """Also where a piece is cut just before it."""
    text = f"{SEPARATOR}\naaaaaaa\n{SEPARATOR}".encode()
    found = [
        chunk
        for piece in pieces(text, [1])
        for chunk in text_chunks(piece, chunk_bytes=1, piece_bytes=100, deciding_bytes=20)
    ]
    assert ["".join(parts).strip() for parts in documents(found)] == ["aaaaaaa"]


@given(text=blank_texts, at=cuts)
def test_lines_of_a_piece_are_counted_from_its_first_whole_line(text: str, at: list[int]) -> None:
    raw = text.encode()
    found = []
    for piece in pieces(raw, at):
        before = raw.count(b"\n", 0, max(0, piece.begin - 1)) + 1 if piece.begin else 0
        found += [(line + before, document) for line, document in records(text_chunks(piece))]
    assert found == expected(text, "")


def test_a_document_longer_than_a_chunk_is_emitted_in_pieces_that_split_no_character() -> None:
    long = "\r\n".join("ä " * 40 for _ in range(500))
    raw = f"first\r\n\r\n{long}\r\n\r\nlast".encode()
    chunks = list(text_chunks(opened(raw), chunk_bytes=100, piece_bytes=1000))
    assert sum(chunk.continues for chunk in chunks) > 10
    wanted = ["first", long.replace("\r\n", "\n").rstrip(), "last"]
    assert ["".join(parts) for parts in documents(iter(chunks))] == wanted
    lines = [item.line for item in items(iter(chunks))]
    assert (lines[0], lines[-1]) == (1, 504)


def test_the_tail_of_a_very_long_line_is_not_a_separator() -> None:
    text = f"{SEPARATOR}\n" + "x" * 50 + f" {SEPARATOR}\nmore"
    for size in range(20, 90):
        chunks = text_chunks(opened(text.encode()), chunk_bytes=size, piece_bytes=size)
        assert ["".join(parts) for parts in documents(chunks)] == [text[14:]]


def test_a_document_that_begins_at_a_cut_is_not_taken_for_a_part() -> None:
    for separator in ("", SEPARATOR):
        text = (
            f"{SEPARATOR}\n" * bool(separator) + f"a\n{separator}\n" + ("word " * 9 + "word\n") * 20
        )
        begin = text.index("word")
        sizes = {"chunk_bytes": 10, "deciding_bytes": 20}
        for cut in range(begin - 3, begin + 4):
            chunks = [
                chunk
                for piece in pieces(text.encode(), [cut])
                for chunk in text_chunks(piece, **sizes)
            ]
            joined = ["".join(parts) for parts in documents(iter(chunks))]
            assert joined == ["a", text[begin:].rstrip()]


def test_the_blank_tail_of_a_very_long_line_ends_no_document() -> None:
    text = "a\n" + "x" * 2**20 + "  \nb"
    chunks = [chunk for piece in pieces(text.encode(), [1]) for chunk in text_chunks(piece)]
    assert ["".join(parts) for parts in documents(iter(chunks))] == [text]


rows = st.lists(
    st.dictionaries(st.text(max_size=5), st.text(max_size=20) | st.integers(), max_size=3)
)


@given(
    rows=rows, at=cuts, size=sizes, end=st.sampled_from(["\n", "\r\n", "\n\n"]), last=st.booleans()
)
def test_pieces_of_json_lines_give_the_records_of_the_whole(
    rows: list[dict[str, object]], at: list[int], size: int, end: str, last: bool
) -> None:
    text = end.join(json.dumps(row, ensure_ascii=False) for row in rows) + (end if last else "")
    found = [
        value
        for piece in pieces(text.encode(), at)
        for _, value in records(json_line_chunks(piece, chunk_bytes=size))
    ]
    assert found == rows
    whole = records(json_line_chunks(opened(text.encode(), can_seek=False), chunk_bytes=size))
    step = 2 if end == "\n\n" else 1
    assert whole == [(1 + step * number, row) for number, row in enumerate(rows)]


@pytest.mark.parametrize("size", [1, 7, 2**20])
def test_each_kind_of_broken_line_is_located_and_the_others_are_read(size: int) -> None:
    raw = (
        b'{"a": 1}\n'
        b'{"a": \n'
        b"\n"
        b'{"a": "\xe9"}\n'
        b"[1]\n"
        b'{"a": "\xed\xa0\x80"}\n'  # half a surrogate pair, which is not valid UTF-8
        b'{"a": ' + b"[" * 100_000 + b"\n"
        b'{"a": 2}'
    )
    assert outline(json_line_chunks(opened(raw), chunk_bytes=size)) == [
        {"a": 1},
        ("not JSON", 2),
        ("not UTF-8", 4),
        ("not an object", 5),
        ("not UTF-8", 6),
        ("not JSON", 7),
        {"a": 2},
    ]


def test_a_line_that_is_too_long_is_skipped() -> None:
    raw = b'{"a": 1}\n{"a": "' + b"x" * 500 + b'"}\n{"a": 2}\n{"a": "' + b"x" * 500
    chunks = json_lines("a file", ByteReader(opened(raw)), chunk_bytes=10, record_bytes=100)
    assert outline(chunks) == [{"a": 1}, ("too long", 2), {"a": 2}, ("too long", 4)]


def test_invalid_utf8_is_located_and_loses_one_document() -> None:
    raw = b"first\n\nsecond\nwith \xe9 in it\n\nthird"
    found = items(text_chunks(opened(raw)))
    assert [getattr(item, "value", None) for item in found] == ["first", None, "third"]
    assert found[1] == Problem("not UTF-8", "a file", 4, "byte 6 of the line is not valid UTF-8")


def test_a_byte_order_mark_is_not_part_of_the_text() -> None:
    for can_seek in (True, False):
        assert records(text_chunks(opened(b"\xef\xbb\xbfabc", can_seek=can_seek))) == [(1, "abc")]
        marked = opened(b'\xef\xbb\xbf{"a": 1}', can_seek=can_seek)
        assert records(json_line_chunks(marked)) == [(1, {"a": 1})]
    raw = f"\ufeff{SEPARATOR}\na\n\nb".encode()
    assert records(text_chunks(opened(raw))) == [(2, "a\n\nb")]


def _lines(number: int) -> list[dict[str, str]]:
    made = random.Random(1)
    return [{"text": str(made.random())} for _ in range(number)]


def _gzipped(raw: bytes, damage: str) -> OpenedSource:
    packed = bytearray(gzip.compress(raw))
    if damage == "truncated":
        del packed[len(packed) // 2 :]
    elif damage == "checksum":
        packed[-6] ^= 1
    else:
        packed[len(packed) // 2] ^= 0xFF
    return opened(gzip.GzipFile(fileobj=io.BytesIO(packed)), can_seek=False)


@pytest.mark.parametrize("damage", ["truncated", "checksum", "inside"])
@pytest.mark.parametrize("number", [5_000, 40_000])
def test_damaged_compression_loses_only_what_follows(damage: str, number: int) -> None:
    rows = _lines(number)
    raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
    *found, last = items(json_line_chunks(_gzipped(raw, damage)))
    assert isinstance(last, Problem)
    assert last.kind == "damaged compression"
    whole = [item for item in found if not isinstance(item, Problem)]
    assert len(whole) >= number * (0.99 if damage == "checksum" else 0.3)
    if damage == "truncated":
        assert last.line == len(found) + 1
        assert [item.value for item in whole] == rows[: len(found)]


@pytest.mark.parametrize("damage", ["truncated", "checksum"])
def test_damaged_text_is_reported_though_the_separator_had_to_be_found_first(damage: str) -> None:
    raw = "".join(f"{row['text']}\n\n" for row in _lines(50_000)).encode()
    found = items(text_chunks(_gzipped(raw, damage)))
    assert len(found) > 10_000
    assert found[-1].kind == "damaged compression"  # type: ignore[union-attr]


def test_a_document_cut_off_by_damage_is_ended() -> None:
    raw = " ".join(row["text"] for row in _lines(50_000)).encode()
    damaged = _gzipped(raw, "truncated")
    documents(text_chunks(damaged, chunk_bytes=1000, piece_bytes=4000))


@pytest.mark.parametrize("reader", [text_chunks, json_line_chunks])
def test_after_damage_nothing_is_read_that_may_not_fit(reader: object) -> None:
    class Hiccup(io.BytesIO):
        num_reads = 0

        def read(self, size: int | None = -1) -> bytes:
            self.num_reads += 1
            if self.num_reads == 3:
                raise EOFError("once")
            return super().read(size)

    stream = Hiccup(b'{"a": 1}\n\n' * 5000)
    found = items(reader(opened(stream, can_seek=False)))  # type: ignore[operator]
    assert [type(item) for item in found].count(Problem) == 1
    assert isinstance(found[-1], Problem)
    assert len(found) < 2000


@pytest.mark.parametrize("reader", [text_chunks, json_line_chunks])
def test_a_failing_disk_is_not_taken_for_damage(reader: object) -> None:
    raw = b'{"a": 1}\n\n' * 1000
    for can_seek in (True, False):
        with pytest.raises(HeadwayError, match="the disk is gone"):
            list(reader(opened(Failing(raw, 2000), can_seek=can_seek)))  # type: ignore[operator]


def test_a_store_that_answers_in_parts_gives_the_same_chunks() -> None:
    class Dribbling(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(7, size) if size and size > 0 else 7)

    raw = b"".join(b'{"a": %d}\n\n' % number for number in range(200))
    for reader in (text_chunks, json_line_chunks):
        assert list(reader(opened(Dribbling(raw)), chunk_bytes=100)) == list(
            reader(opened(raw), chunk_bytes=100)
        )


@pytest.mark.parametrize("reader", [text_chunks, json_line_chunks])
def test_memory_does_not_grow_with_the_file(reader: object) -> None:
    block = b'{"text": "' + b"word " * 500 + b'"}\n\n'
    sizes_bytes = {}
    for times in (8_000, 16_000):
        stream = opened(Endless(b"", block, times), can_seek=False)  # type: ignore[arg-type]
        sizes_bytes[times], count = peak_bytes(reader(stream))  # type: ignore[operator]
        assert count == times
    assert sizes_bytes[16_000] < 1.2 * sizes_bytes[8_000] + 2**20
