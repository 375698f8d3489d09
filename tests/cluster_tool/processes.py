"""Processes that outlive the one that started them; a later one can end them.

Each is recorded with its start time: a number alone may be another process's by then.
"""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

END_SECONDS = 30.0


def start_ticks(pid: int) -> int | None:
    """When it was started, in clock ticks of this boot; None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in brackets, may itself have blanks and brackets.
    state, *fields = text.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def kill(pid: int, ticks: int) -> None:
    """Ends that process and waits until it has; nothing else, should it be gone already."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # The handle is on one process for good: if the time is right now, it stays right.
        if start_ticks(pid) != ticks:
            return
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        assert ended.poll(END_SECONDS * 1000), f"process {pid} was killed and does not end"
    finally:
        os.close(handle)
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


class Processes:
    """Those of one work folder, by name."""

    def __init__(self, folder: Path) -> None:
        self.records = folder / "processes"
        self.logs = folder / "log"

    def start(self, name: str, command: Sequence[str | Path]) -> int:
        assert self.pid(name) is None, f"{name} is running already"
        self.records.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        log = os.open(self.log(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ]
        words = [str(word) for word in command]
        # Not subprocess: that wants to be the one who waits for its end.
        pid = os.posix_spawnp(words[0], words, os.environ, file_actions=actions, setsid=True)
        os.close(log)
        record = {"pid": pid, "ticks": start_ticks(pid)}
        self._record(name).write_text(json.dumps(record))
        return pid

    def pid(self, name: str) -> int | None:
        """None if it was never started, or has ended."""
        pid, ticks = self._recorded(name)
        return pid if ticks is not None and start_ticks(pid) == ticks else None

    def end(self, name: str) -> None:
        pid, ticks = self._recorded(name)
        if ticks is not None:
            kill(pid, ticks)
        self._record(name).unlink(missing_ok=True)

    def end_all(self) -> None:
        for name in self.names():
            self.end(name)

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.records.glob("*.json"))

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def _record(self, name: str) -> Path:
        return self.records / f"{name}.json"

    def _recorded(self, name: str) -> tuple[int, int | None]:
        try:
            record = json.loads(self._record(name).read_text())
        except FileNotFoundError:
            return 0, None
        return record["pid"], record["ticks"]
