"""How sources are read: cut into chunks in one process, read and tokenised in many.

    piece      a file, a range of its bytes, or one part of a dataset on the hub
    chunk      about a megabyte of a piece: quick to cut, cheap to send to another process
    record     one line, row or document of a chunk
    problem    what stands in a record's place when it cannot be read: counted, located, never fatal

Which documents a chunk holds depends on the source alone, never on who reads it or how many do.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

import pydantic

CHUNK_BYTES = 2**20
"""Some hundred documents: enough to keep a process busy for a quarter of a second, little enough
that dozens of chunks on their way are no burden."""
RECORD_BYTES = 2**26
"""The longest line or row that is read. Beyond it something is wrong with the file, and memory
would not be bounded."""

DAMAGED = (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError)
"""What reading a damaged file raises. A disk or a store that fails is none of these: `opening.py`
makes that a HeadwayError, which ends the preparation, to be taken up later."""


@dataclass(frozen=True)
class Record:
    value: Any
    """A text (`str`), a mapping of columns, or an array of token ids."""
    line: int
    """Its first line, or its row, counted from 1 at the beginning of the piece."""


@pydantic.dataclasses.dataclass(frozen=True)
class Problem:
    """Something in a source that could not be read."""

    kind: str
    """A few words, the same for all problems of a kind: `not UTF-8`, `no column`."""
    file: str
    line: int | None
    """As in `Record`; None when it concerns the file as a whole."""
    message: str
    """What exactly, for the person who mends it."""

    @property
    def where(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class Chunk(Protocol):
    """Pickled and sent to a process that tokenises."""

    @property
    def file(self) -> str: ...

    @property
    def num_lines(self) -> int:
        """Lines (or rows) of the piece that this chunk takes up."""
        ...

    @property
    def opens(self) -> bool:
        """Whether its first record goes on with the document of the chunk before."""
        ...

    @property
    def continues(self) -> bool:
        """Whether its last record's document goes on in the next chunk."""
        ...

    def records(self) -> Iterator[Record | Problem]: ...


@dataclass(frozen=True)
class Opened:
    """A piece, open for reading."""

    file: str
    """As messages name it."""
    stream: BinaryIO
    """Its bytes, decompressed; positioned anywhere."""
    can_seek: bool
    """Whether `stream` can: plain files and objects can, compressed ones and members of archives
    cannot."""
    begin: int = 0
    end: int | None = None
    """The range of bytes that the piece covers; None is the end of the file."""
    columns: tuple[str, ...] | None = None
    """The only columns that are needed; None when all may be."""


@dataclass(frozen=True)
class Records:
    """A chunk of records that were read while cutting."""

    file: str
    items: tuple[Record | Problem, ...]
    num_lines: int = 0
    opens: bool = False
    continues: bool = False

    def records(self) -> Iterator[Record | Problem]:
        return iter(self.items)


def broken(kind: str, file: str, line: int | None, message: str) -> Records:
    """A chunk that holds one problem and nothing else."""
    return Records(file, (Problem(kind, file, line, message),))
