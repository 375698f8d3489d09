"""Records, one JSON object a line, by one writer; readable while they grow.

In a folder a log is one file that is appended to, also where it is served from elsewhere and only
read. Object stores have no append: there a log is a row of numbered segments, sent every minute and
at each checkpoint (events: within seconds), and its writer also keeps a file on its own machine, so
that what happens can be followed there without a delay.

Nothing that was written is ever changed. Steps that are done again are announced by a line
`{"rewind": c}`, and readers drop what lies beyond c. A writer that was stopped may go on at any
moment, also while its successor takes over. What it adds behind its successor's lines has an older
generation's number, and readers drop it; what both have written they take once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path, PurePath
from threading import Lock
from typing import Any, Protocol

from headway.state.store import Store

Record = dict[str, Any]
APPENDING = os.O_RDWR | os.O_CREAT | os.O_APPEND


class Log(Protocol):
    def append(self, *records: Record) -> None:
        """Never fails: what cannot be written now is kept and written later. No other writer's
        lines come between these."""
        ...

    def flush(self) -> None:
        """Everything appended has reached the store, and its disk, when this returns; OSError when
        it cannot."""
        ...

    def read(self, position: int = 0) -> tuple[list[Record], int]:
        """Complete records from a position on, and the position after them."""
        ...

    def last(self) -> Record | None:
        """The newest record that has reached the store."""
        ...

    def forget(self) -> None:
        """What was appended and has not reached the store never will: it is kept elsewhere, or
        another has written it."""
        ...


def open_log(store: Store, local: Path, name: str) -> Log:
    if store.is_local:
        return FileLog(store.path(f"{name}.jsonl"))
    if store.is_served:
        return ServedLog(store, f"{name}.jsonl")
    return SegmentLog(store, name, FileLog(local / f"{name}.jsonl"))


def settled(records: list[Record]) -> list[Record]:
    """Records by step with rewinds folded: each step once, as it was done last."""
    kept: list[Record] = []
    for record in in_time(records):
        if "rewind" in record:
            while kept and kept[-1]["step"] > record["rewind"]:
                kept.pop()
            continue
        # A validation set of the step that a generation went on from may be looked at again.
        while kept and kept[-1]["step"] >= record["step"] and _is_older(kept[-1], record):
            kept.pop()
        if not any(map(partial(_is_same, record), _of_step(kept, record["step"]))):
            kept.append(record)  # else both have written it
    return kept


def in_time(records: list[Record]) -> list[Record]:
    """Without those that a generation's leader added after a newer one had begun to write."""
    kept: list[Record] = []
    newest = 0
    for record in records:
        said = writer_of(record)
        writer = said if isinstance(said, int) else newest
        if writer >= newest:
            newest = writer
            kept.append(record)
    return kept


def writer_of(record: Record) -> Any:
    """The generation whose leader wrote the line: its own, unless a later one made up for it."""
    return record.get("writer", record.get("generation", record.get("begin")))


def stands_at(record: Record) -> int:
    """The step that a log stands at after this line."""
    return int(record["rewind"] if "rewind" in record else record["step"])


def _is_older(record: Record, than: Record) -> bool:
    return bool(record.get("generation", 0) < than.get("generation", 0))


def _of_step(records: list[Record], step: int) -> Iterator[Record]:
    """Those at the end that are of this step, or a later one."""
    return takewhile(lambda record: record["step"] >= step, reversed(records))


def _is_same(one: Record, other: Record) -> bool:
    return all(one.get(key) == other.get(key) for key in ("step", "set", "block"))


class FileLog:
    """One file. A machine that goes down can leave half a line; it is not read, and the next line
    starts anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pending: list[bytes] = []
        self._lock = Lock()  # of training's thread and the saver's

    def append(self, *records: Record) -> None:
        with self._lock:
            self._pending.extend(map(_line, records))
            with suppress(OSError):  # a full disk: tried again with the next line
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
                raise OSError(f"{self.path}: the disk took {written} of {len(content)} bytes")
            self._pending.clear()
        finally:
            os.close(descriptor)

    def read(self, position: int = 0) -> tuple[list[Record], int]:
        try:
            with self.path.open("rb") as file:
                file.seek(position)
                data = file.read()
        except FileNotFoundError:
            return [], position
        whole = data[: data.rfind(b"\n") + 1]
        return _records(whole), position + len(whole)

    def last(self, block_bytes: int = 65536) -> Record | None:
        """The newest complete record, without reading a long file whole."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - block_bytes))
                data = file.read()
        except FileNotFoundError:
            return None
        # One that lacks only its end of line has it before the next.
        records = in_time(_records(data))
        if not records and block_bytes < size:  # a line longer than the block
            return self.last(2 * block_bytes)
        return records[-1] if records else None

    def forget(self) -> None:
        with self._lock:
            self._pending.clear()


class ServedLog:
    """The file of a folder elsewhere, to be read only: whoever writes it has it as a `FileLog`."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name

    def append(self, *records: Record) -> None:
        raise NotImplementedError(f"{self.store.location(self.name)} is written elsewhere")

    def flush(self) -> None:
        pass

    def read(self, position: int = 0) -> tuple[list[Record], int]:
        size = self.store.size(self.name) or 0
        if size <= position:
            return [], position
        data = self.store.read_range(self.name, position, size - position)
        whole = data[: data.rfind(b"\n") + 1]
        return _records(whole), position + len(whole)

    def last(self) -> Record | None:
        records = in_time(self.read()[0])
        return records[-1] if records else None

    def forget(self) -> None:
        pass


class RememberedLog:
    """A log for one that reads it again and again: each line is read once. `keys` are those of a
    record that are remembered; None: all."""

    def __init__(self, log: Log, keys: Sequence[str] | None = None) -> None:
        self._log = log
        self._keys = keys
        self._records: list[Record] = []
        self._position = 0
        self._lock = Lock()

    def append(self, *records: Record) -> None:
        raise NotImplementedError("it is read only")

    def flush(self) -> None:
        pass

    def read(self, position: int = 0) -> tuple[list[Record], int]:
        """From a number of records on."""
        with self._lock:
            new, self._position = self._log.read(self._position)
            self._records += map(self._slim, new)
            return self._records[position:], len(self._records)

    def _slim(self, record: Record) -> Record:
        if self._keys is None:
            return record
        return {key: record[key] for key in self._keys if key in record}

    def last(self) -> Record | None:
        return self._log.last()

    def forget(self) -> None:
        pass


class SegmentLog:
    """Numbered segments `NAME/00000001.jsonl` in an object store, and a file here to follow."""

    def __init__(self, store: Store, name: str, here: FileLog) -> None:
        self.store = store
        self.name = name
        self.here = here
        self._pending: list[bytes] = []
        self._sending: list[bytes] = []
        self._next: int | None = None
        self._lock = Lock()  # appended to by training, flushed by the saver's thread
        self._flushing = Lock()  # and perhaps by two at once

    def append(self, *records: Record) -> None:
        self.here.append(*records)
        with self._lock:
            self._pending.extend(map(_line, records))

    def flush(self) -> None:
        with self._flushing:
            self._send()  # what an earlier attempt could not: it may have arrived, so unchanged
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

    def read(self, position: int = 0) -> tuple[list[Record], int]:
        segments = self._segments()[position:]
        records = [record for name in segments for record in _records(self.store.read(name))]
        return records, position + len(segments)

    def last(self) -> Record | None:
        for name in reversed(self._segments()):
            records = in_time(_records(self.store.read(name)))
            if records:
                return records[-1]
        return None

    def forget(self) -> None:
        with self._flushing, self._lock:  # what is on its way arrives first, or has failed
            self._sending, self._pending = [], []

    def _segments(self) -> list[str]:
        return self.store.names(self.name)


def _line(record: Record) -> bytes:
    return (json.dumps(record, separators=(",", ":")) + "\n").encode()


def _records(data: bytes) -> list[Record]:
    """Of all lines that are whole: half a line is no JSON object, for it lacks the last brace."""
    records = []
    for line in data.splitlines():
        with suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict):
                records.append(record)
    return records
