"""Files called .json: an array of objects, a single object, or actually JSON lines (as C4 is
published). The first character decides, and whether the first line is an object by itself.

An array cannot be cut without being parsed, so it is parsed while cutting. After a broken element,
reading continues at the next line that starts with `{` at the same indentation as the broken one:
this fits arrays with one element per line, and indented ones. If there is no such line, the rest of
the file is lost.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

from headway.data.formats.chunks import (
    CHUNK_BYTES,
    RECORD_BYTES,
    Chunk,
    OpenedSource,
    Problem,
    RecordChunk,
    SourceRecord,
)
from headway.data.formats.text_and_jsonl import ByteReader, json_lines, parse_object

_BLANKS = re.compile(r"[ \t\r\n]*")
_NO_UTF8 = re.compile("[\udc80-\udcff]")
"""Characters that `surrogateescape` makes of invalid UTF-8; valid UTF-8 never decodes to them."""
_CUT_CHARACTERS = 16
"""This close to the end of the buffer, a truncated literal, number or escape looks like an error;
the longest is \\uXXXX twice."""
_WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
_LOOKED_AT_LINES = 64


def json_chunks(
    opened: OpenedSource, *, chunk_bytes: int = CHUNK_BYTES, record_bytes: int = RECORD_BYTES
) -> Iterator[Chunk]:
    source = ByteReader(opened)
    head = source.read(chunk_bytes)
    while head.lstrip()[:1] == b"{" and b"\n" not in head.lstrip() and len(head) < record_bytes:
        more = source.read(len(head))
        head += more
        if not more:
            break
    source.unread(head)
    if _is_lines(head):
        yield from json_lines(opened.file, source, chunk_bytes, record_bytes)
        return
    del head
    text = _Text(source, chunk_bytes, record_bytes)
    items = _elements(text, opened.file) if text.blanks() == "[" else _single(text, opened.file)
    held: list[SourceRecord | Problem] = []
    line = 1
    for item in items:
        held.append(item)
        if text.passed >= chunk_bytes:
            yield RecordChunk(opened.file, tuple(held), text.line - line)
            held, line, text.passed = [], text.line, 0
    if held:
        yield RecordChunk(opened.file, tuple(held), text.line - line + 1)


def _is_lines(head: bytes) -> bool:
    """Whether it is JSON lines; the first line may be broken if most others are not."""
    first, *others = head.lstrip().split(b"\n", _LOOKED_AT_LINES)[:_LOOKED_AT_LINES]
    if not first.startswith(b"{"):
        return False
    others = [line for line in others if line.strip()]
    num_objects = sum(isinstance(parse_object(line), dict) for line in others)
    return isinstance(parse_object(first), dict) or 2 * num_objects > len(others)


def _single(text: _Text, file: str) -> Iterator[SourceRecord | Problem]:
    line = text.line
    if text.character or text.damage:
        try:
            yield _item(text.value(), file, line)
        except _Broken as error:
            message = f"{error}; the rest of the file is lost"
            is_damage = text.damage is not None
            yield Problem(error.kind, file, error.line, message, is_damage=is_damage)
            return
    yield from _end(text, file)


def _elements(text: _Text, file: str) -> Iterator[SourceRecord | Problem]:
    text.advance(text.at + 1)
    margin = None
    while text.blanks() not in ("]", ""):
        margin = text.margin if text.margin is not None else margin
        line = text.line
        try:
            yield _item(text.value(), file, line)
        except _Broken as error:
            if not error.is_passed:
                is_found = margin is not None and text.find(error.at, margin)
                then = f"reading continues at line {text.line}" if is_found else "the rest is lost"
                message = f"{error}; {then}"
                yield Problem(error.kind, file, error.line, message, is_damage=not is_found)
                if not is_found:
                    return
                continue
            yield Problem(error.kind, file, error.line, str(error))
        if text.blanks() == ",":
            text.advance(text.at + 1)
        elif text.character not in ("]", ""):
            yield Problem("not JSON", file, text.line, "no comma between two elements")
    if text.character == "]":
        text.advance(text.at + 1)
        yield from _end(text, file)
    else:
        kind, message = text.damage or ("truncated", "the array is not closed")
        yield Problem(kind, file, text.line, message, is_damage=True)


def _item(value: Any, file: str, line: int) -> SourceRecord | Problem:
    if isinstance(value, dict):
        return SourceRecord(value, line)
    return Problem("not an object", file, line, f"a JSON {type(value).__name__}, not an object")


def _end(text: _Text, file: str) -> Iterator[Problem]:
    if text.blanks():
        yield Problem("text after the end", file, text.line, "this and all after it is left out")
    elif text.damage:
        yield Problem(text.damage[0], file, text.line, text.damage[1], is_damage=True)


class _Broken(Exception):
    def __init__(self, kind: str, line: int, message: str, at: int, is_passed: bool) -> None:
        super().__init__(message)
        self.kind, self.line, self.at = kind, line, at
        self.is_passed = is_passed
        """Whether the end of the broken element is known."""


class _Text:
    """A sliding window over the text of a file."""

    def __init__(self, source: ByteReader, chunk_characters: int, record_characters: int) -> None:
        self._source = source
        self._chunk_characters = chunk_characters
        self._record_characters = record_characters
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._text = ""
        self._is_clean = True
        self._parse = json.JSONDecoder().raw_decode
        self.at = 0
        self.line = 1
        self.passed = 0
        """Characters skipped; reset by the caller."""
        self.margin: str | None = None
        """The whitespace before `at`, if nothing else precedes it on its line."""

    @property
    def character(self) -> str:
        return self._text[self.at : self.at + 1]

    @property
    def damage(self) -> tuple[str, str] | None:
        return self._source.problem

    def advance(self, to: int) -> None:
        self.line += self._text.count("\n", self.at, to)
        self.passed += to - self.at
        self.at = to

    def blanks(self) -> str:
        """Skips whitespace; returns the next character, or an empty string at the end."""
        self.margin = None
        while True:
            match = _BLANKS.match(self._text, self.at)
            assert match is not None
            _, newline, last = match.group().rpartition("\n")
            if newline or self.margin is not None:
                self.margin = last if newline else f"{self.margin}{last}"
            self.advance(match.end())
            if self.character or not self._more():
                return self.character

    def value(self) -> Any:
        """Parses the value at `at` and moves past it."""
        while True:
            try:
                value, end = self._parse(self._text, self.at)
            except RecursionError:
                raise self._broken("not JSON", "nested too deeply", self.at) from None
            except ValueError as error:
                # Do not keep the error itself: it holds the whole text.
                message, position = getattr(error, "msg", str(error)), getattr(error, "pos", 0)
            else:
                length = end - self.at
                if end < len(self._text) or not self._more():  # else a number may continue
                    return self._checked(value, self.at + length)
                continue
            before = max(0, position - self.at)
            is_close = self.at + before >= len(self._text) - _CUT_CHARACTERS
            may_be_cut = is_close or message.startswith("Unterminated")
            if may_be_cut and len(self._text) - self.at > self._record_characters:
                limit = f"an element longer than {self._record_characters} bytes"
                raise self._broken("too long", limit, position)
            if not may_be_cut or not self._more():
                raise self._broken(*self._kind(message, self.at + before), self.at + before)

    def find(self, begin: int, margin: str) -> bool:
        """Moves to the next line, from `begin` on, that starts with the margin and `{`."""
        pattern = re.compile(r"\n" + re.escape(margin) + r"\{")
        begin = max(self.at + 1, self._text.rfind("\n", self.at, begin))
        while (match := pattern.search(self._text, begin)) is None:
            self.advance(max(begin, len(self._text) - len(margin) - 1))
            if not self._more():
                return False
            begin = self.at
        self.advance(match.end() - 1)
        return True

    def _more(self) -> bool:
        """Reads more text, and drops what is before `at`."""
        self._text, self.at = self._text[self.at :], 0
        data = self._source.read(max(self._chunk_characters, len(self._text)))
        new = self._decode(data, final=not data)
        self._is_clean = self._is_clean and _is_utf8(new)
        self._text += new
        return bool(data)

    def _checked(self, value: Any, end: int) -> Any:
        found = None if self._is_clean else _NO_UTF8.search(self._text, self.at, end)
        if found is not None:
            message = f"the byte 0x{ord(found.group()) - 0xDC00:02x} is not valid UTF-8"
            problem = self._broken("not UTF-8", message, found.start(), is_passed=True)
            self.advance(end)
            raise problem
        self.advance(end)
        return value

    def _kind(self, message: str, at: int) -> tuple[str, str]:
        if len(self._text) - at >= _CUT_CHARACTERS and not message.startswith("Unterminated"):
            return "not JSON", message
        rest = self._text[at:]
        is_number = not rest.strip("+-.eE0123456789")
        is_string = message.startswith(("Unterminated", "Invalid \\"))
        if not is_number and not is_string and not any(word.startswith(rest) for word in _WORDS):
            return "not JSON", message
        if self.damage is not None:
            return self.damage[0], self.damage[1].partition(";")[0]
        return "truncated", "the file ends inside an element"

    def _broken(self, kind: str, message: str, at: int, is_passed: bool = False) -> _Broken:
        line = self.line + self._text.count("\n", self.at, at)
        return _Broken(kind, line, message, at, is_passed)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
