"""The run directory: everything a run writes, in files that are readable while it goes on.

run.json            format version, name, when it was made
spec.json           the resolved run
events.jsonl        what happened, one line each: launched, started, saved, failed, ...
metrics.jsonl       one line per committed step
evaluations.jsonl   one line per validation set and evaluation
logs/               what each worker printed
checkpoints/        step-00000300/, whole or not there (see checkpoint.py)
tensorboard/        when tracked
lock                held by the launcher as long as the run goes on
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headway import __version__
from headway.clock import Clock, stamp
from headway.errors import BadInput, NotFound, StillRunning
from headway.spec.resolve import Resolved

FORMAT_VERSION = 1


class RunDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = JsonLines(path / "events.jsonl")
        self.metrics = JsonLines(path / "metrics.jsonl")
        self.evaluations = JsonLines(path / "evaluations.jsonl")
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"

    @property
    def name(self) -> str:
        return self.path.name

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run; says why when it is none or of a format we do not know."""
        try:
            record = json.loads((path / "run.json").read_text("utf-8"))
        except FileNotFoundError:
            raise NotFound(f"no run at {path}", "headway list shows what there is") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise BadInput(f"{path / 'run.json'} is damaged: {error}") from None
        if not isinstance(record, dict):
            raise BadInput(f"{path / 'run.json'} is damaged: it is no mapping")
        if record.get("version") != FORMAT_VERSION:
            raise BadInput(
                f"{path} has run directory version {record.get('version')}, "
                f"and this headway knows {FORMAT_VERSION}",
                "use the headway that made it",
            )
        return cls(path)

    @classmethod
    def create(cls, path: Path, clock: Clock) -> RunDirectory:
        """The run at `path`, made when it is not there yet."""
        if (path / "run.json").exists():
            return cls.open(path)
        for folder in (path, path / "logs", path / "checkpoints"):
            folder.mkdir(parents=True, exist_ok=True)
        record = {
            "version": FORMAT_VERSION,
            "name": path.name,
            "created": stamp(clock.now()),
            "headway": __version__,
        }
        write_whole(path / "run.json", json.dumps(record, indent=2) + "\n")
        return cls(path)

    def log(self, node: int, local_rank: int) -> Path:
        return self.path / "logs" / f"node-{node}.rank-{local_rank}.log"

    def logs(self) -> list[Path]:
        return sorted((self.path / "logs").glob("node-*.rank-*.log"))

    def write_spec(self, resolved: Resolved) -> None:
        text = resolved.model_dump_json(by_alias=True, exclude_none=True, indent=2)
        write_whole(self.path / "spec.json", text + "\n")

    def read_spec(self) -> Resolved:
        path = self.path / "spec.json"
        try:
            return Resolved.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise NotFound(f"run {self.name} was never started", "headway run") from None
        except ValidationError as error:
            raise BadInput(f"{path} is damaged: {error}") from None

    @contextmanager
    def held(self) -> Iterator[int]:
        """The right to run here, as a file descriptor that workers inherit: the kernel lets go of
        the lock when the last process that has it is dead, in whatever way."""
        with (self.path / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StillRunning(
                    f"run {self.name} is going on already", f"headway status {self.name}"
                ) from None
            yield file.fileno()

    def is_running(self) -> bool:
        try:
            with (self.path / "lock").open("r") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False


class JsonLines:
    """A file of one JSON object a line, appended to by one write each, so lines never mix.

    A machine that goes down can leave half a line. It is not read, and the next line starts anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: dict[str, Any]) -> None:
        line = (json.dumps(record, separators=(",", ":")) + "\n").encode()
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def read(self, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
        """Complete lines from byte `offset` on, and the offset after them; a half line waits."""
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                data = file.read()
        except FileNotFoundError:
            return [], offset
        whole = data[: data.rfind(b"\n") + 1]
        return _records(whole), offset + len(whole)

    def all(self) -> list[dict[str, Any]]:
        return self.read()[0]

    def last(self, block_bytes: int = 65536) -> dict[str, Any] | None:
        """The newest complete line, without reading a long file whole."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - block_bytes))
                data = file.read()
        except FileNotFoundError:
            return None
        records = _records(data[: data.rfind(b"\n") + 1])
        if not records and block_bytes < size:  # a line longer than the block
            return self.last(2 * block_bytes)
        return records[-1] if records else None

    def rewind(self, step: int) -> None:
        """Drop what lies beyond `step`: those steps are about to be done again."""
        if self.path.exists():
            kept = [record for record in self.all() if record["step"] <= step]
            write_whole(
                self.path, "".join(json.dumps(r, separators=(",", ":")) + "\n" for r in kept)
            )


def _records(data: bytes) -> list[dict[str, Any]]:
    """Of all lines that are whole: half a line is no JSON object, for it lacks the last brace."""
    records = []
    for line in data.splitlines():
        with suppress(ValueError):
            record = json.loads(line)
            if isinstance(record, dict):
                records.append(record)
    return records


class Journal:
    """Events with their time, for one writer."""

    def __init__(self, directory: RunDirectory, clock: Clock) -> None:
        self.directory = directory
        self.clock = clock

    def note(self, event: str, **facts: Any) -> None:
        self.directory.events.append({"time": stamp(self.clock.now()), "event": event, **facts})


def write_whole(path: Path, text: str) -> None:
    """A file that is either the old or the new one, whatever happens in between."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def flush_to_disk(path: Path) -> None:
    """What the file or folder holds survives a power cut from here on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
