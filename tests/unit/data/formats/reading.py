"""How the tests of this folder read: chunks through a pickle, as between processes."""

from __future__ import annotations

import io
import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from headway.data.formats.chunks import Chunk, OpenedSource, Problem, SourceRecord
from headway.errors import HeadwayError

Reader = Callable[..., Iterator[Chunk]]


def opened(data: bytes | BinaryIO, **how: Any) -> OpenedSource:
    """A file that can seek, and is positioned somewhere inside."""
    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    if how.setdefault("can_seek", True):
        stream.seek(3)
    return OpenedSource("a file", cast(BinaryIO, stream), **how)


def items(chunks: Iterator[Chunk]) -> list[SourceRecord | Problem]:
    found: list[SourceRecord | Problem] = []
    for chunk in chunks:
        sent = pickle.loads(pickle.dumps(chunk))
        assert sent.file.startswith("a file")
        assert sent.num_lines >= 0
        found += sent.records()
    return found


def records(chunks: Iterator[Chunk]) -> list[tuple[int, Any]]:
    """Line and value of each; fails if there is any problem."""
    found = items(chunks)
    assert [item for item in found if isinstance(item, Problem)] == []
    return [(item.line, item.value) for item in found if isinstance(item, SourceRecord)]


def outline(chunks: Iterator[Chunk]) -> list[Any]:
    """Values of records, and (kind, line) of problems, in order."""
    return [
        (item.kind, item.line) if isinstance(item, Problem) else item.value
        for item in items(chunks)
    ]


def problems(chunks: Iterator[Chunk]) -> list[Problem]:
    return [item for item in items(chunks) if isinstance(item, Problem)]


def documents(chunks: Iterator[Chunk]) -> list[list[Any]]:
    """The parts of each document, joined by `opens` and `continues`, which have to agree."""
    found: list[list[Any]] = []
    is_open = False
    for chunk in chunks:
        values = [item.value for item in chunk.records() if isinstance(item, SourceRecord)]
        if not values:
            assert not chunk.opens
            continue
        assert chunk.opens == is_open
        if is_open:
            found[-1].append(values.pop(0))
        found += [[value] for value in values]
        is_open = chunk.continues
    assert not is_open
    return found


class Endless(io.RawIOBase):
    """A large file that takes no memory: `head`, then `block` again and again, then `tail`."""

    def __init__(self, head: bytes, block: bytes, times: int, tail: bytes = b"") -> None:
        self._parts = (part for part in (head, *(block for _ in range(times)), tail))
        self._held = b""

    def read(self, size: int = -1) -> bytes:
        assert size >= 0, "constant memory"
        while len(self._held) < size and (part := next(self._parts, None)) is not None:
            self._held += part
        data, self._held = self._held[:size], self._held[size:]
        return data


def peak_bytes(chunks: Iterator[Chunk]) -> tuple[int, int]:
    """The most memory Python took while reading, and the number of records."""
    tracemalloc.start()
    try:
        count = sum(1 for chunk in chunks for _ in chunk.records())
        return tracemalloc.get_traced_memory()[1], count
    finally:
        tracemalloc.stop()


class Failing(io.BytesIO):
    """A disk that fails once a number of bytes were read."""

    def __init__(self, data: bytes, after: int) -> None:
        super().__init__(data)
        self.left = after

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.left -= len(data)
        if self.left < 0:
            raise HeadwayError("the disk is gone", "mend it")
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
