"""Comma- and tab-separated values with a header, per RFC 4180: a field in quotes may contain the
delimiter, newlines and doubled quotes.

The process that cuts chunks only looks for quotes, which is fast; the processes that tokenise parse
the rows. A quote opens a quoted field only at the beginning of a field; anywhere else it is text.

An unclosed quote, or a closing quote followed by text, loses its row up to the end of the line the
quote is on. Parsing then continues with the next line; the number of fields tells whether it is a
row.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

from headway.data.formats.chunks import (
    CHUNK_BYTES,
    RECORD_BYTES,
    Chunk,
    OpenedSource,
    Problem,
    SourceRecord,
    damage_chunk,
    problem_chunk,
)
from headway.data.formats.text_and_jsonl import ByteReader

_HEADER_BYTES = 2**20
_QUOTED = re.compile(rb'"[^"]*+(?:""[^"]*+)*+')
_NO_UTF8 = re.compile("[\udc80-\udcff]")
"""Characters that `surrogateescape` makes of invalid UTF-8; valid UTF-8 never decodes to them."""


@dataclass(frozen=True)
class CsvChunk:
    """Whole rows, each ending in a newline; no quote is left open at the end."""

    file: str
    first_line: int
    data: bytes
    delimiter: str
    names: tuple[str, ...]
    columns: tuple[str, ...]
    """The columns needed, a subset of `names`."""
    opens: bool = False
    continues: bool = False

    @property
    def num_lines(self) -> int:
        return self.data.count(b"\n")

    def records(self) -> Iterator[SourceRecord | Problem]:
        line, begin = self.first_line, 0
        for row, quote, resume in _scan(self.data, self.delimiter).wrong:
            if row > begin:
                yield from self._rows(self.data[begin:row], line)
            opened_on = line + self.data.count(b"\n", begin, quote)
            yield Problem("wrong quotes", self.file, opened_on, "text after a closing quote")
            line, begin = line + self.data.count(b"\n", begin, resume), resume
        yield from self._rows(self.data[begin:], line)

    def _rows(self, data: bytes, line: int) -> Iterator[SourceRecord | Problem]:
        csv.field_size_limit(max(len(data), csv.field_size_limit()))
        text, is_clean = _decoded(data)
        indices = [self.names.index(name) for name in self.columns]
        # Only \n ends a line here, to match how lines are counted.
        reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=self.delimiter, strict=True)
        while True:
            start = line + reader.line_num
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield Problem("wrong row", self.file, start, str(error).partition(" - ")[0])
                continue
            if not is_clean and (found := _unclean(row, self.names)):
                yield Problem(found[0], self.file, start, found[1])
            elif len(row) == len(self.names):
                yield SourceRecord({self.names[index]: row[index] for index in indices}, start)
            elif row:  # otherwise a blank line
                message = f"{len(row)}, but the header has {len(self.names)}"
                yield Problem("wrong number of fields", self.file, start, message)


def csv_chunks(
    opened: OpenedSource,
    *,
    delimiter: str = ",",
    chunk_bytes: int = CHUNK_BYTES,
    record_bytes: int = RECORD_BYTES,
) -> Iterator[Chunk]:
    source = ByteReader(opened)
    head = source.read(_HEADER_BYTES)
    if not head.strip() and source.problem is None:
        return
    names, line, rest = _header(head, delimiter)
    source.unread(rest)
    columns = names if opened.columns is None else opened.columns
    if problem := _header_problem(names, columns, source.problem):
        chunk = problem_chunk if source.problem is None else damage_chunk
        yield chunk(problem[0], opened.file, line - 1, problem[1])
        return
    buffer, is_end = b"", False
    while not is_end:
        # A row longer than a chunk is scanned again on each read, so each read doubles the buffer.
        data = source.read(max(chunk_bytes, len(buffer)))
        is_end = len(data) < max(chunk_bytes, len(buffer))
        buffer += data
        if is_end and source.problem is None and buffer and not buffer.endswith(b"\n"):
            buffer += b"\n"
        found = _scan(buffer, delimiter)
        if found.end:
            table = CsvChunk(opened.file, line, buffer[: found.end], delimiter, names, columns)
            yield table
            line, buffer = line + table.num_lines, buffer[found.end :]
        if len(buffer) > record_bytes or (is_end and buffer and source.problem is None):
            quote = 0 if found.open is None else found.open - found.end
            resume = buffer.find(b"\n", quote) + 1
            if resume:
                opened_on = line + buffer.count(b"\n", 0, quote)
                message = f"the quote is not closed within {record_bytes} bytes"
                if is_end:
                    message = "the quote is never closed"
                yield problem_chunk("unclosed quote", opened.file, opened_on, message)
                line += buffer.count(b"\n", 0, resume)
                source.unread(buffer[resume:])
            else:
                line += buffer.count(b"\n")
                yield problem_chunk(
                    "too long", opened.file, line, f"a line longer than {record_bytes} bytes"
                )
                source.skip_line()
                line += 1
            buffer, is_end = b"", False
    if source.problem is not None:
        yield damage_chunk(source.problem[0], opened.file, line, source.problem[1])


def tsv_chunks(opened: OpenedSource) -> Iterator[Chunk]:
    yield from csv_chunks(opened, delimiter="\t")


@dataclass(frozen=True)
class _Scan:
    end: int
    """Offset after the last complete row."""
    open: int | None
    """Offset of a quote that is not closed before the end."""
    wrong: list[tuple[int, int, int]]
    """Where text follows a closing quote: start of the row, opening quote, where to continue."""


def _scan(data: bytes, delimiter: str) -> _Scan:
    """Scans bytes that start at the beginning of a row."""
    before, after = (b"\n", delimiter.encode()), (b"\n", b"\r", delimiter.encode())
    wrong: list[tuple[int, int, int]] = []
    end = plain = at = 0
    while (quote := data.find(b'"', at)) >= 0:
        if quote and data[quote - 1 : quote] not in before:
            at = quote + 1
            continue
        end = max(end, data.rfind(b"\n", plain, quote) + 1)
        match = _QUOTED.match(data, quote)
        assert match is not None
        if match.end() + 1 >= len(data):  # the closing quote may be half of a doubled one
            return _Scan(end, quote, wrong)
        plain = at = match.end() + 1
        if data[at : at + 1] not in after:
            plain = at = data.find(b"\n", quote) + 1
            if not at:
                return _Scan(end, quote, wrong)
            wrong.append((end, quote, at))
            end = at
    return _Scan(max(end, data.rfind(b"\n", plain) + 1), None, wrong)


def _header(head: bytes, delimiter: str) -> tuple[tuple[str, ...], int, bytes]:
    """The column names, the number of the next line, and the bytes from there on. No names if there
    is no readable header."""
    text = io.StringIO(_decoded(head)[0], newline="\n")
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    try:
        names = next((tuple(row) for row in reader if row), ())
    except csv.Error:
        return (), 2, b""
    rest = head.split(b"\n", reader.line_num)[reader.line_num :]
    return names, reader.line_num + 1, b"".join(rest)


def _header_problem(
    names: tuple[str, ...], columns: tuple[str, ...], damage: tuple[str, str] | None
) -> tuple[str, str] | None:
    if not names:
        return damage or ("no header", "no line with column names")
    if found := _unclean(list(names), names):
        return found
    if "" in names:
        return "no header", f"column {names.index('') + 1} has no name"
    if twice := sorted({name for name in names if names.count(name) > 1}):
        return "no header", f"more than one column is called {', '.join(twice)}"
    if missing := [name for name in columns if name not in names]:
        return "no column", f"no column {', '.join(missing)}; there are: {', '.join(names)}"
    return None


def _decoded(data: bytes) -> tuple[str, bool]:
    """The decoded text, and whether the bytes are valid UTF-8 without NULs."""
    try:
        return data.decode(), b"\0" not in data
    except UnicodeDecodeError:
        return data.decode(errors="surrogateescape"), False


def _unclean(row: list[str], names: tuple[str, ...]) -> tuple[str, str] | None:
    for number, field in enumerate(row):
        name = names[number] if number < len(names) else number + 1
        if found := _NO_UTF8.search(field):
            byte = ord(found.group()) - 0xDC00
            return "not UTF-8", f"column {name} holds the byte 0x{byte:02x}, not valid UTF-8"
        if "\0" in field:
            return "NUL byte", f"in column {name}"
    return None
