"""How sources are read: one process cuts them into chunks, many processes parse and tokenise these.

    piece      a file, a range of its bytes, or one part of a dataset on the hub
    chunk      about a megabyte of a piece: quick to cut, cheap to send to another process
    record     one line, row or document of a chunk
    problem    takes the place of a record that cannot be read: counted, located, never fatal

Which documents a chunk holds depends on the source alone, never on which process reads it or how
many there are.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import pydantic

CHUNK_BYTES = 2**20
"""Target size of a chunk. It holds a few hundred documents: enough to keep a process busy for a
quarter of a second, little enough to have dozens of chunks in flight."""
RECORD_BYTES = 2**26
"""Length limit of a line or row, to bound memory. A longer one means a broken file."""

DAMAGED = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)
"""Errors raised when reading a damaged file. A failing disk or store is not among them:
`open_files.py` turns that into a HeadwayError, which stops the preparation until it is resumed."""


@dataclass(frozen=True)
class SourceRecord:
    value: Any
    """A text (`str`), a mapping of columns, or an array of token ids."""
    line: int
    """First line, or row, of the record, counted from 1 at the beginning of the piece."""


@pydantic.dataclasses.dataclass(frozen=True)
class Problem:
    """Something in a source that could not be read."""

    kind: str
    """A few words, the same for all problems of one kind: `not UTF-8`, `no column`."""
    file: str
    line: int | None
    """Line as in `SourceRecord`; None when the problem concerns the whole file."""
    message: str
    """Details, for the person who repairs the source."""
    is_damage: bool = False
    """Whether a part of the file is damaged, not a single record."""
    num_rows: int | None = None
    """Number of rows lost, if the format knows it."""
    num_bytes: int | None = None
    """Bytes of the file, as stored, that damage has lost, if that is known. For a file that was cut
    off: an estimate of the bytes that did not come."""
    share: float | None = None
    """Share of the file that damage has lost, if that is known."""

    @property
    def where(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class Chunk(Protocol):
    """Part of a source, pickled and sent to a process that tokenises it."""

    @property
    def file(self) -> str: ...

    @property
    def num_lines(self) -> int:
        """Number of lines (or rows) of the piece that this chunk covers."""
        ...

    @property
    def opens(self) -> bool:
        """Whether its first record continues the last document of the previous chunk."""
        ...

    @property
    def continues(self) -> bool:
        """Whether the document of its last record continues in the next chunk."""
        ...

    def records(self) -> Iterator[SourceRecord | Problem]: ...


@dataclass(frozen=True)
class OpenedSource:
    """A piece, open for reading."""

    file: str
    """Name shown in messages."""
    stream: BinaryIO
    """Decompressed bytes, at any position."""
    can_seek: bool
    """Whether `stream` can seek: plain files and objects can, compressed ones cannot."""
    begin: int = 0
    end: int | None = None
    """End of the byte range that the piece covers; None is the end of the file."""
    columns: tuple[str, ...] | None = None
    """The only columns needed; None when any may be needed."""
    open_beside: Callable[[str], BinaryIO] | None = None
    """Opens another file of the same place, by its name."""


@dataclass(frozen=True)
class RecordChunk:
    """A chunk whose records were parsed while cutting."""

    file: str
    items: tuple[SourceRecord | Problem, ...]
    num_lines: int = 0
    opens: bool = False
    continues: bool = False

    def records(self) -> Iterator[SourceRecord | Problem]:
        return iter(self.items)


def problem_chunk(
    kind: str, file: str, line: int | None, message: str, num_rows: int | None = None
) -> RecordChunk:
    """A chunk that holds a single problem, which is no damage."""
    return RecordChunk(file, (Problem(kind, file, line, message, num_rows=num_rows),))


def damage_chunk(
    kind: str,
    file: str,
    line: int | None,
    message: str,
    *,
    num_rows: int | None = None,
    share: float | None = None,
) -> RecordChunk:
    """A chunk that holds damage to a part of the file."""
    problem = Problem(kind, file, line, message, is_damage=True, num_rows=num_rows, share=share)
    return RecordChunk(file, (problem,))
