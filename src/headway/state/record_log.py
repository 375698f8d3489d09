"""Logs of records: one JSON object a line, one writer, readable while they grow.

In a folder a log is one file that is appended to; served from another machine, it is read only.
Object stores have no append: there a log is a series of numbered segments, uploaded every minute
and at each checkpoint (events: within seconds). Its writer also keeps a file on its own machine,
so that progress can be followed there without delay.

A record is never changed once written: rewinds.py decides which records count.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath
from threading import Lock
from typing import Protocol

from headway.state.rewinds import Record, without_stale
from headway.state.store import Store

APPENDING = os.O_RDWR | os.O_CREAT | os.O_APPEND
PIECE_BYTES = 2**22
"""Read at a time."""


class Log(Protocol):
    def append(self, *records: Record) -> None:
        """Never fails: records that cannot be written now are kept and written later. No other
        writer's lines come between these."""
        ...

    def flush(self) -> None:
        """Returns when all appended records are in the store, and on its disk; else OSError."""
        ...

    def pieces(self, position: int = 0) -> Iterator[tuple[list[Record], int]]:
        """Complete records from a position on, some megabytes at a time, each with the position
        after them: a long run's log need not be in memory at once."""
        ...

    def read(self, position: int = 0) -> tuple[list[Record], int]:
        """All complete records from a position on, and the position after them."""
        records: list[Record] = []
        end = position
        for some, after in self.pieces(position):
            records += some
            end = after
        return records, end

    def last(self) -> Record | None:
        """The newest record that has reached the store."""
        ...

    def forget(self) -> None:
        """Drops the records that have not reached the store: they are kept elsewhere, or another
        writer has written them."""
        ...


def open_log(store: Store, local: Path, name: str) -> Log:
    if store.is_local:
        return FileLog(store.path(f"{name}.jsonl"))
    if store.is_served:
        return ServedLog(store, f"{name}.jsonl")
    return SegmentLog(store, name, FileLog(local / f"{name}.jsonl"))


class FileLog(Log):
    """One file. A machine that crashes can leave half a line: it is skipped by readers, and the
    next record starts a new line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[bytes] = []
        self._lock = Lock()  # training appends, the saver's thread flushes

    def append(self, *records: Record) -> None:
        with self._lock:
            self._pending.extend(map(_line, records))
            with suppress(OSError):  # a full disk: retried with the next record
                self._write()

    def flush(self) -> None:
        with self._lock:
            self._write()
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def _write(self) -> None:
        if not self._pending:
            return
        try:
            descriptor = os.open(self.path, APPENDING, 0o644)
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, APPENDING, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            content = b"".join(self._pending)
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                content = b"\n" + content
            written = os.write(descriptor, content)
            if written < len(content):
                os.ftruncate(descriptor, size)
                raise OSError(f"{self.path}: only {written} of {len(content)} bytes were written")
            self._pending.clear()
        finally:
            os.close(descriptor)

    def pieces(
        self, position: int = 0, piece_bytes: int = PIECE_BYTES
    ) -> Iterator[tuple[list[Record], int]]:
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(position)
            yield from _complete_lines(partial(file.read, piece_bytes), position)

    def end(self) -> int:
        """The position after the newest record, without reading."""
        return self.path.stat().st_size if self.path.exists() else 0

    def last(self, block_bytes: int = 65536) -> Record | None:
        """The newest complete record, without reading a long file whole."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - block_bytes))
                data = file.read()
        except FileNotFoundError:
            return None
        # A complete record without a newline counts: the newline is written before the next one.
        records = without_stale(_records(data))
        if not records and block_bytes < size:  # a line longer than the block
            return self.last(2 * block_bytes)
        return records[-1] if records else None

    def forget(self) -> None:
        with self._lock:
            self._pending.clear()


class ServedLog(Log):
    """The file of a folder on another machine, read only: its writer has it as a `FileLog`."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name

    def append(self, *records: Record) -> None:
        raise NotImplementedError(f"{self.store.location(self.name)} is written elsewhere")

    def flush(self) -> None:
        pass

    def pieces(self, position: int = 0) -> Iterator[tuple[list[Record], int]]:
        starts = iter(range(position, self.store.size(self.name) or 0, PIECE_BYTES))

        def next_bytes() -> bytes:
            start = next(starts, None)
            return b"" if start is None else self.store.read_range(self.name, start, PIECE_BYTES)

        yield from _complete_lines(next_bytes, position)

    def last(self) -> Record | None:
        records = without_stale(self.read()[0])
        return records[-1] if records else None

    def forget(self) -> None:
        pass


class RememberedLog(Log):
    """A log for repeated reading: each record is read once and kept in memory, with the values of
    `keys` only; None: all of them."""

    def __init__(self, log: Log, keys: Sequence[str] | None = None) -> None:
        self._log = log
        self._keys = keys
        self._records: list[Record] = []
        self._position = 0
        self._lock = Lock()

    def append(self, *records: Record) -> None:
        raise NotImplementedError("a remembered log is read only")

    def flush(self) -> None:
        pass

    def pieces(self, position: int = 0) -> Iterator[tuple[list[Record], int]]:
        """From a number of records on, in one piece."""
        with self._lock:
            for new, after in self._log.pieces(self._position):
                self._records += map(self._slim, new)
                self._position = after
            piece = self._records[position:], len(self._records)
        yield piece

    def _slim(self, record: Record) -> Record:
        if self._keys is None:  # else each record has its own copies of the names
            return {sys.intern(key): value for key, value in record.items()}
        return {key: record[key] for key in self._keys if key in record}

    def last(self) -> Record | None:
        return self._log.last()

    def forget(self) -> None:
        pass


class SegmentLog(Log):
    """Numbered segments `NAME/00000001.jsonl` in an object store, and a local file to follow."""

    def __init__(self, store: Store, name: str, here: FileLog) -> None:
        self.store = store
        self.name = name
        self.here = here
        self._pending: list[bytes] = []
        self._sending: list[bytes] = []
        self._next: int | None = None
        self._lock = Lock()  # training appends, the saver's thread flushes
        self._flushing = Lock()  # two threads may flush at once

    def append(self, *records: Record) -> None:
        self.here.append(*records)
        with self._lock:
            self._pending.extend(map(_line, records))

    def flush(self) -> None:
        with self._flushing:
            self._send()  # a failed attempt may have arrived: sent again unchanged
            with self._lock:
                self._sending, self._pending = self._pending, []
            self._send()

    def _send(self) -> None:
        if not self._sending:
            return
        if self._next is None:
            self._next = max((int(PurePath(n).stem) for n in self._segments()), default=0) + 1
        content = b"".join(self._sending)
        while not self.store.create(f"{self.name}/{self._next:08d}.jsonl", content):
            self._next += 1
        self._next += 1
        self._sending = []

    def pieces(self, position: int = 0) -> Iterator[tuple[list[Record], int]]:
        for number, name in enumerate(self._segments()[position:], start=position + 1):
            yield _records(self.store.read(name)), number

    def last(self) -> Record | None:
        for name in reversed(self._segments()):
            records = without_stale(_records(self.store.read(name)))
            if records:
                return records[-1]
        return None

    def forget(self) -> None:
        with self._flushing, self._lock:  # waits until an upload under way has ended
            self._sending, self._pending = [], []

    def _segments(self) -> list[str]:
        return self.store.names(self.name)


def _line(record: Record) -> bytes:
    return (json.dumps(record, separators=(",", ":")) + "\n").encode()


def _complete_lines(
    next_bytes: Callable[[], bytes], position: int
) -> Iterator[tuple[list[Record], int]]:
    """Records of the complete lines among bytes that start at `position`, as they come."""
    rest = b""
    while data := next_bytes():
        lines, newline, rest = (rest + data).rpartition(b"\n")
        position += len(lines) + len(newline)
        yield _records(lines), position


def _records(data: bytes) -> list[Record]:
    """Of all complete lines: half a line lacks the last brace, so it is no JSON object."""
    records = []
    for line in data.splitlines():
        try:
            # Decoded here: json would look for other encodings in every line.
            record = json.loads(line.decode("utf-8", "surrogatepass"))
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records
