"""Logs of records: one JSON object a line, one writer, readable while they grow.

In a folder a log is one file that is appended to; served from another machine, it is read only.
Object stores have no append: there a log is a series of numbered segments, uploaded every minute
and at each checkpoint (events: within seconds). Its writer also keeps a file on its own machine,
so that progress can be followed there without delay.

A record is never changed once written: rewinds.py decides which records count.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Protocol

from headway.state import log_lines
from headway.state.numbered_files import NumberedFiles
from headway.state.rewinds import Record, without_stale
from headway.state.store import NUM_REQUESTS, Store, in_parallel

APPENDING = os.O_RDWR | os.O_CREAT | os.O_APPEND
PIECE_BYTES = 2**22
"""Read at a time."""
END_BYTES = 2**16
"""Read at a time to find the last line."""


class Log(Protocol):
    def append(self, *records: Record) -> None:
        """Never fails: records that cannot be written now are kept and written later. No other
        writer's lines come between these."""
        ...

    def flush(self) -> None:
        """Returns when all appended records are in the store, and on its disk; else OSError."""
        ...

    def pieces(
        self, position: int = 0, end: int | None = None
    ) -> Iterator[tuple[list[Record], int]]:
        """Complete records from a position on, up to another one or to the end, some megabytes at a
        time, each with the position after them: a long run's log need not be in memory at once."""
        ...

    def read(self, position: int = 0) -> tuple[list[Record], int]:
        """All complete records from a position on, and the position after them."""
        records: list[Record] = []
        end = position
        for some, after in self.pieces(position):
            records += some
            end = after
        return records, end

    @property
    def num_damaged(self) -> int:
        """Lines that were read here and are damaged."""
        ...

    def end(self) -> int:
        """The position after the newest record in the store."""
        ...

    def is_position(self, position: int) -> bool:
        """Whether a reader may have come to it: false for one of another log."""
        ...

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
        self._lines = Lines(path.stem)
        self._pending: list[bytes] = []
        self._lock = Lock()  # training appends, the saver's thread flushes

    def append(self, *records: Record) -> None:
        with self._lock:
            self._pending.extend(map(log_lines.encoded, records))
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
        self, position: int = 0, end: int | None = None, piece_bytes: int = PIECE_BYTES
    ) -> Iterator[tuple[list[Record], int]]:
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(position)

            def next_bytes() -> bytes:
                left = piece_bytes if end is None else end - file.tell()
                return file.read(min(piece_bytes, max(0, left)))

            yield from self._lines.complete(next_bytes, position)

    @property
    def num_damaged(self) -> int:
        return self._lines.num_damaged

    def end(self) -> int:
        """Half a line may follow."""
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            while size:
                begin = max(0, size - END_BYTES)
                file.seek(begin)
                found = file.read(size - begin).rfind(b"\n")
                if found >= 0:
                    return begin + found + 1
                size = begin
        return 0

    def is_position(self, position: int) -> bool:
        if not position:
            return True
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(position - 1)
            return file.read(1) == b"\n"
        return False

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
        begin = max(0, size - block_bytes)
        if begin:
            data = data.partition(b"\n")[2]  # the first line is cut
        records = without_stale(Lines(self.path.stem).records(data, begin))
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
        self._lines = Lines(Path(name).stem)

    @property
    def num_damaged(self) -> int:
        return self._lines.num_damaged

    def append(self, *records: Record) -> None:
        raise NotImplementedError(f"{self.store.location(self.name)} is written elsewhere")

    def flush(self) -> None:
        pass

    def pieces(
        self, position: int = 0, end: int | None = None
    ) -> Iterator[tuple[list[Record], int]]:
        last = self.end() if end is None else end
        starts = iter(range(position, last, PIECE_BYTES))

        def next_bytes() -> bytes:
            start = next(starts, last)
            length = min(PIECE_BYTES, last - start)
            return self.store.read_range(self.name, start, length) if length else b""

        yield from self._lines.complete(next_bytes, position)

    def end(self) -> int:
        """Half a line may be before it."""
        return self.store.size(self.name) or 0

    def is_position(self, position: int) -> bool:
        if not position:
            return True
        try:
            return self.store.read_range(self.name, position - 1, 1) == b"\n"
        except FileNotFoundError:
            return False

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

    @property
    def num_damaged(self) -> int:
        return self._log.num_damaged

    def append(self, *records: Record) -> None:
        raise NotImplementedError("a remembered log is read only")

    def flush(self) -> None:
        pass

    def pieces(
        self, position: int = 0, end: int | None = None
    ) -> Iterator[tuple[list[Record], int]]:
        """From a number of records on, in one piece."""
        with self._lock:
            for new, after in self._log.pieces(self._position):
                self._records += map(self._slim, new)
                self._position = after
            found = self._records[position:end]
        yield found, position + len(found)

    def end(self) -> int:
        return len(self._records)

    def is_position(self, position: int) -> bool:
        """Positions in the log itself are no numbers of records."""
        return position == 0

    def _slim(self, record: Record) -> Record:
        if self._keys is None:  # else each record has its own copies of the names
            return {sys.intern(key): value for key, value in record.items()}
        return {key: record[key] for key in self._keys if key in record}

    def last(self) -> Record | None:
        return self._log.last()

    def forget(self) -> None:
        pass


class SegmentLog(Log):
    """Numbered segments `NAME/000000/00000001.jsonl` in an object store, and a local file to
    follow. A position is the number of a segment."""

    def __init__(self, store: Store, name: str, here: FileLog) -> None:
        self.store = store
        self.name = name
        self.here = here
        self._lines = Lines(name)
        self._pending: list[bytes] = []
        self._sending: list[bytes] = []
        self._files = NumberedFiles(store, name, 8, ".jsonl")
        self._next: int | None = None
        self._last: tuple[int, Record] | None = None
        """The newest record that was found, and the number of its segment."""
        self._lock = Lock()  # training appends, the saver's thread flushes
        self._flushing = Lock()  # two threads may flush at once

    def append(self, *records: Record) -> None:
        self.here.append(*records)
        with self._lock:
            self._pending.extend(map(log_lines.encoded, records))

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
            self._next = self._files.newest() + 1
        content = b"".join(self._sending)
        while not self.store.create(self._files.name(self._next), content):
            self._next += 1
        self._next += 1
        self._sending = []

    def end(self) -> int:
        """Others may have written behind it since."""
        with self._flushing:
            return self._files.newest() if self._next is None else self._next - 1

    def is_position(self, position: int) -> bool:
        return True  # segments are never removed

    def pieces(
        self, position: int = 0, end: int | None = None
    ) -> Iterator[tuple[list[Record], int]]:
        names = self._files.after(position)
        if end is not None:
            names = {number: name for number, name in names.items() if number <= end}
        contents = in_parallel(self.store.read, names.values(), NUM_REQUESTS)
        for number, content in zip(names, contents, strict=True):
            yield self._lines.records(content, segment=number), number

    @property
    def num_damaged(self) -> int:
        return self._lines.num_damaged

    def last(self) -> Record | None:
        if self._last is not None:
            self._last = self._newest_of(self._files.after(self._last[0])) or self._last
        elif names := self._files.newest_folder():
            # All of them, only if no record of a whole folder can be read.
            self._last = self._newest_of(names) or self._newest_of(self._files.all())
        return self._last[1] if self._last is not None else None

    def _newest_of(self, names: dict[int, str]) -> tuple[int, Record] | None:
        for number, name in reversed(names.items()):
            records = without_stale(self._lines.records(self.store.read(name), segment=number))
            if records:
                return number, records[-1]
        return None

    def forget(self) -> None:
        with self._flushing, self._lock:  # waits until an upload under way has ended
            self._sending, self._pending = [], []


class Lines:
    """The lines of one log, decoded; those that cannot be believed are left out, and known."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._damaged: set[tuple[int, int]] = set()

    @property
    def num_damaged(self) -> int:
        return len(self._damaged)

    def records(self, data: bytes, position: int = 0, segment: int = 0) -> list[Record]:
        """Of all complete lines from a position on: of half a line the checksum is wrong."""
        records, at = [], position
        for line in data.split(b"\n"):
            if line:
                record = log_lines.decoded(line, self._log)
                if record is not None:
                    records.append(record)
                else:
                    self._damaged.add((segment, at))
            at += len(line) + 1
        return records

    def complete(
        self, next_bytes: Callable[[], bytes], position: int
    ) -> Iterator[tuple[list[Record], int]]:
        """The complete lines among bytes that start at `position`, as they come."""
        rest = b""
        while data := next_bytes():
            lines, newline, rest = (rest + data).rpartition(b"\n")
            begin, position = position, position + len(lines) + len(newline)
            yield self.records(lines, begin), position
