"""Text and JSON lines: files that can be cut at any line, so parts of one file can be read in
parallel.

    .jsonl   each line is a record: a JSON object
    .txt     if a file has lines that hold only <|endoftext|>, these separate its documents, and
             blank lines belong to the documents; in any other file, blank lines separate documents

One document per file would be wrong for most large text files, and one per line would split
paragraphs. The first 16 MiB of a file decide which separator it uses.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from headway.data.formats.chunks import (
    CHUNK_BYTES,
    DAMAGED,
    RECORD_BYTES,
    Chunk,
    OpenedSource,
    Problem,
    SourceRecord,
    damage_chunk,
    problem_chunk,
)

SEPARATOR = "<|endoftext|>"
DECIDING_BYTES = 2**24
PIECE_BYTES = 2**22
"""Documents longer than this are emitted in pieces: tokenising takes a hundred times a document's
size in memory."""

_STEP_BYTES = 2**13
"""Bytes per read: a read that fails half-way loses what it had read so far."""

_BLANKS = re.compile(rb"\n(?:[ \t\r\f\v]*\n)+")
_SEPARATORS = re.compile(rb"^[ \t\r]*<\|endoftext\|>[ \t\r]*$\n?", re.MULTILINE)
_LEADING_BLANKS = re.compile(rb"(?:[ \t\r\f\v]*\n)+")


@dataclass(frozen=True)
class JsonLineChunk:
    """Whole lines, each of which should be a JSON object."""

    file: str
    first_line: int
    data: bytes
    opens: bool = False
    continues: bool = False

    @property
    def num_lines(self) -> int:
        return _num_lines(self.data)

    def records(self) -> Iterator[SourceRecord | Problem]:
        for number, line in enumerate(self.data.split(b"\n"), start=self.first_line):
            if not line.strip():
                continue
            value = parse_object(line)
            if isinstance(value, dict):
                yield SourceRecord(value, number)
            else:
                yield Problem(value[0], self.file, number, value[1])


def parse_object(line: bytes) -> dict[str, object] | tuple[str, str]:
    """The JSON object, or the kind of problem and its details."""
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return "not UTF-8", f"byte {error.start + 1} of the line is not valid UTF-8"
    except RecursionError:
        return "not JSON", "nested too deeply"
    except ValueError as error:
        return "not JSON", str(error)
    if not isinstance(value, dict):
        return "not an object", f"a JSON {type(value).__name__}, not an object with columns"
    return value


@dataclass(frozen=True)
class TextChunk:
    """Whole documents, or parts of a very long one."""

    file: str
    first_line: int
    data: bytes
    by_separator: bool
    opens: bool = False
    continues: bool = False

    @property
    def num_lines(self) -> int:
        # A line that continues in the next chunk is counted there.
        return self.data.count(b"\n") if self.continues else _num_lines(self.data)

    def records(self) -> Iterator[SourceRecord | Problem]:
        begin, line = 0, self.first_line
        for match in _separators(self.data, self.by_separator, self.opens):
            yield from self._record(begin, match.start(), line)
            line += self.data.count(b"\n", begin, match.end())
            begin = match.end()
        yield from self._record(begin, len(self.data), line)

    def _record(self, begin: int, end: int, line: int) -> Iterator[SourceRecord | Problem]:
        continues_previous = self.opens and begin == 0
        if not continues_previous and (blanks := _LEADING_BLANKS.match(self.data, begin, end)):
            line += self.data.count(b"\n", begin, blanks.end())
            begin = blanks.end()
        raw = self.data[begin:end]
        continues_in_next = self.continues and end == len(self.data)
        if not continues_in_next:
            raw = raw.rstrip()
        if not raw and not continues_previous and not continues_in_next:
            return
        try:
            yield SourceRecord(raw.decode().replace("\r\n", "\n"), line)
        except UnicodeDecodeError as error:
            line += raw.count(b"\n", 0, error.start)
            byte = error.start - raw.rfind(b"\n", 0, error.start)
            message = f"byte {byte} of the line is not valid UTF-8"
            yield Problem("not UTF-8", self.file, line, message)


def json_line_chunks(opened: OpenedSource, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    begin = _line_at(opened, opened.begin)
    end = None if opened.end is None else _line_at(opened, opened.end)
    yield from json_lines(opened.file, ByteReader(opened, begin, end), chunk_bytes)


def json_lines(
    file: str, source: ByteReader, chunk_bytes: int = CHUNK_BYTES, record_bytes: int = RECORD_BYTES
) -> Iterator[Chunk]:
    line, buffer = 1, b""
    while data := source.read(chunk_bytes):
        buffer += data
        cut = buffer.rfind(b"\n") + 1
        if cut:
            chunk = JsonLineChunk(file, line, buffer[:cut])
            yield chunk
            line, buffer = line + chunk.num_lines, buffer[cut:]
        elif len(buffer) > record_bytes:
            yield problem_chunk("too long", file, line, f"a line longer than {record_bytes} bytes")
            source.skip_line()
            line, buffer = line + 1, b""
    if source.problem is not None:
        yield damage_chunk(source.problem[0], file, line, source.problem[1])
    elif buffer:
        yield JsonLineChunk(file, line, buffer)


def text_chunks(
    opened: OpenedSource,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    piece_bytes: int = PIECE_BYTES,
    deciding_bytes: int = DECIDING_BYTES,
) -> Iterator[Chunk]:
    source = ByteReader(opened)
    head = source.read(deciding_bytes)
    # Plain search first: it is a hundred times faster, and finds nothing in most files.
    by_separator = SEPARATOR.encode() in head and _SEPARATORS.search(head) is not None
    begin, opens, end, is_open, line = 0, False, None, False, 1
    if opened.can_seek:
        begin, opens, line = _document_at(opened, opened.begin, by_separator, deciding_bytes)
        if opened.end is not None:
            end, is_open, _ = _document_at(opened, opened.end, by_separator, deciding_bytes)
        source = ByteReader(opened, begin, end)
    else:
        source.unread(head)
    del head
    buffer = b""
    while data := source.read(chunk_bytes):
        buffer += data
        cut = _last_end(buffer, by_separator, opens)
        continues = not cut and len(buffer) >= piece_bytes
        if continues:
            cut = _inside(buffer)
        if cut:
            chunk = TextChunk(opened.file, line, buffer[:cut], by_separator, opens, continues)
            yield chunk
            line, buffer, opens = line + chunk.num_lines, buffer[cut:], continues
    if source.problem is not None:
        # The text before the error may be half a document: drop it with the rest.
        yield damage_chunk(source.problem[0], opened.file, line, source.problem[1])
        buffer = b""
    if buffer or opens:
        yield TextChunk(opened.file, line, buffer, by_separator, opens, is_open)


class ByteReader:
    """Reads bytes from `begin` to `end`, as many at a time as requested. Damaged compression ends
    the data after everything readable, and sets `problem`."""

    def __init__(self, opened: OpenedSource, begin: int = 0, end: int | None = None) -> None:
        self._stream = opened.stream
        if opened.can_seek:
            self._stream.seek(begin)
        self._left = None if end is None else end - begin
        self._ahead = memoryview(b"")
        self._is_first = begin == 0
        self.problem: tuple[str, str] | None = None

    def read(self, count: int) -> bytes:
        """`count` bytes, fewer only at the end: the content of a chunk must not depend on how a
        store splits its responses."""
        parts, missing = [], count
        while missing and (part := self._next(missing)):
            missing -= len(part)
            parts.append(part)
        data = b"".join(parts)
        if self._is_first:
            data, self._is_first = data.removeprefix(codecs.BOM_UTF8), False
        return data

    def unread(self, data: bytes) -> None:
        """Puts data back, to be read again."""
        self._ahead = memoryview(data + self._ahead)

    def skip_line(self) -> None:
        """Skips the rest of a line."""
        while data := self.read(CHUNK_BYTES):
            end = data.find(b"\n")
            if end >= 0:
                self.unread(data[end + 1 :])
                return

    def _next(self, count: int) -> bytes:
        if self._ahead:
            data, self._ahead = self._ahead[:count].tobytes(), self._ahead[count:]
            return data
        if self.problem is not None:
            return b""
        count = min(count, _STEP_BYTES)
        if self._left is not None:
            count = min(count, self._left)
        try:
            data = self._stream.read(count)
        except DAMAGED as error:
            self.problem = ("damaged compression", f"{error}; the rest of the file is lost")
            return b""
        if self._left is not None:
            self._left -= len(data)
        return data


def _line_at(opened: OpenedSource, at: int) -> int:
    """The offset of the first line that starts at `at` or later."""
    if at == 0:
        return 0
    opened.stream.seek(at - 1)
    position = at - 1
    while data := opened.stream.readline(CHUNK_BYTES):
        position += len(data)
        if data.endswith(b"\n"):
            break
    return position


def _document_at(
    opened: OpenedSource, at: int, by_separator: bool, far: int
) -> tuple[int, bool, int]:
    """The offset of the first document whose separator starts at `at` or later, False, and its line
    number. If it is too far away: a line inside a document, where the document is cut, and True.
    The parts on both sides of a cut compute the same result."""
    if at == 0:
        return 0, False, 1
    first = position = _line_at(opened, at)
    line, follows_text, is_start = 1, False, True
    while data := opened.stream.readline(CHUNK_BYTES):
        begin, position = position, position + len(data)
        is_whole = data.endswith(b"\n")
        is_line = is_whole or len(data) < CHUNK_BYTES  # the last one needs no end
        if is_start and is_line and _separates(data, by_separator):
            return position, False, line + 1
        if is_start and follows_text and position - first > far:
            return begin, True, line  # neither this line nor the previous one separates documents
        follows_text, is_start = True, is_whole
        line += is_whole
    return position, False, line


def _separates(line: bytes, by_separator: bool) -> bool:
    return _SEPARATORS.fullmatch(line) is not None if by_separator else not line.strip()


def _separators(data: bytes, by_separator: bool, opens: bool) -> Iterator[re.Match[bytes]]:
    # A chunk that continues a document may start in the middle of a line.
    return _SEPARATORS.finditer(data, int(opens)) if by_separator else _BLANKS.finditer(data)


def _last_end(buffer: bytes, by_separator: bool, opens: bool) -> int:
    """Offset after the last certainly complete separator in the buffer; 0 if there is none."""
    if not by_separator:
        quick = max(buffer.rfind(b"\n\n") + 2, buffer.rfind(b"\n\r\n") + 3)
        if quick > 2:
            return quick
    last = 0
    for match in _separators(buffer, by_separator, opens):
        if buffer[match.end() - 1] == ord("\n"):  # else the line may continue past the buffer
            last = match.end()
    return last


def _inside(buffer: bytes) -> int:
    """Where to cut a long document: before a line or a word, never inside a character, and before
    all whitespace at that place, so that no CRLF is split and the end of a document can drop it."""
    half = len(buffer) // 2
    for white in (b"\n", b" "):
        cut = buffer.rfind(white, half)
        if cut > 0:
            return len(buffer[:cut].rstrip()) or cut
    cut = len(buffer) - 1
    while cut > half and buffer[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut


def _num_lines(data: bytes) -> int:
    return data.count(b"\n") + (not data.endswith(b"\n"))
