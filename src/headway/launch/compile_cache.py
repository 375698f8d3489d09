"""Compiled code of a run, from one pod to the next: fetched from the storage before a node starts
its workers, and written back when they have compiled something new.

ROOT/compiled/IDENTITY/archive is one file (`state.compiled_archive`), replaced as a whole. A cache
never stops a run: whatever goes wrong here is said in a line, and workers compile for themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread

from headway.clock import Clock, stamp
from headway.launch.storage_prune import used_mark
from headway.state.compiled_archive import (
    MAC_BYTES,
    MOST_BYTES,
    BadArchive,
    cached_files,
    pack,
    unpack,
)
from headway.state.store import Store

KIND = "compiled"
NUM_STEPS = 10
"""Steps after which a worker has compiled what it needs for training."""
STORAGE_SECONDS = 20.0
"""How long to wait for the storage: compiling takes longer."""
SETTLED_SECONDS = 5.0
"""Age of the newest file from which on none is being written."""
LOOK_SECONDS = 600.0
"""From one look for new files to the next: evaluation has graphs of its own."""
MOST_TURN_SECONDS = 60.0


class CompileCache:
    """Of one node. `folder` is the parent of the compiler's folder; `index` that of the node."""

    def __init__(
        self,
        storage: Store,
        identity: str,
        key: bytes,
        folder: Path,
        clock: Clock,
        say: Callable[[str], None],
        index: int = 0,
        storage_seconds: float = STORAGE_SECONDS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.folder = folder / "fetched"
        """For workers that start now."""
        self.num_fetched = 0
        """Files that came from the storage."""
        self._storage, self._key, self._clock, self._say = storage, key, clock, say
        self._storage_seconds, self._most_bytes = storage_seconds, most_bytes
        self._folder = f"{KIND}/{identity}"
        self._name = f"{self._folder}/archive"
        self._own_folder = folder / "own"
        self._known: set[str] = set()
        """Names of files that are on the storage, or that another node has written there."""
        self._stored: bytes | None = None
        """MAC of the archive on the storage, as last seen."""
        self._discarded_at = math.inf
        # Nodes that start together compile the same: each looks whether one before it was faster.
        self._turn = min(float(index), MOST_TURN_SECONDS)
        self._look_at: float | None = None
        self._saving: Thread | None = None

    def fetch(self) -> str | None:
        """Before workers start. Why the archive on the storage was refused, if it was."""
        found: list[bytes] = []
        self._in_time(lambda: found.append(self._read()))
        if not found or not found[0]:
            return None
        self._stored = found[0][:MAC_BYTES]
        try:
            self._known = set(unpack(found[0], self._key, self._name, self.folder))
        except BadArchive as error:
            return f"{self._storage.location(self._name)} is not used: {error}"
        except OSError as error:
            self._say(f"compiled code cannot be unpacked: {error}")
            self.folder = self._own_folder
            return None
        self.num_fetched = len(self._known)
        self._say(f"fetched compiled code: {self.num_fetched} files, {len(found[0]) >> 10} KiB")
        return None

    def discard(self) -> None:
        """A worker that used it has ended before its first step. Those that start from now on have
        an empty folder; what they compile replaces the archive."""
        if self._discarded_at == math.inf:
            self._discarded_at = self._clock.monotonic()
            self.folder, self._known = self._own_folder, set()

    def was_used_by(self, started_at: float) -> bool:
        """Whether a worker that was started then had files from the storage."""
        return self.num_fetched > 0 and started_at <= self._discarded_at

    def look(self, num_steps: int) -> None:
        """Several times a second. `num_steps`: taken by the worker that has taken the fewest."""
        now = self._clock.monotonic()
        if num_steps < NUM_STEPS or (self._saving is not None and self._saving.is_alive()):
            return
        if self._look_at is None:
            self._look_at = now + self._turn
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._saving = Thread(target=self._save, name="compiled", daemon=True)
            self._saving.start()

    def finish(self, num_steps: int) -> None:
        """When workers have ended."""
        if num_steps >= NUM_STEPS:
            if self._saving is not None:
                self._saving.join(self._storage_seconds)
            self._in_time(lambda: self._save(are_workers_over=True))

    def _read(self) -> bytes:
        """Empty: there is none."""
        size = self._storage.size(self._name)
        if size is None:
            return b""
        if size > MOST_BYTES + MAC_BYTES:
            self._say(f"{self._storage.location(self._name)} is too large: {size} bytes")
            return b""
        content = self._storage.read_range(self._name, 0, size)
        self._note_used()
        return content

    def _save(self, are_workers_over: bool = False) -> None:
        try:
            self._write_new(are_workers_over)
        except OSError as error:
            self._say(f"compiled code cannot be kept: {error}")

    def _write_new(self, are_workers_over: bool) -> None:
        files = cached_files(self.folder)
        if files.keys() <= self._known:
            return
        if not are_workers_over and self._is_being_written(list(files.values())):
            self._look_at = self._clock.monotonic() + SETTLED_SECONDS
            return
        stored = self._stored_mac()
        if stored != self._stored:
            self._stored, self._known = stored, set(files)  # another node was faster
            return
        archive = pack(files.items(), self._key, self._name, self._most_bytes)
        if archive is None:  # so what others have kept in years is forgotten
            files = {name: path for name, path in files.items() if name not in self._known}
            archive = pack(files.items(), self._key, self._name, self._most_bytes)
        if archive is None:
            self._say(f"compiled code is too large to be kept: over {self._most_bytes >> 20} MiB")
            self._known = set(files)
            return
        self._storage.write(self._name, archive)
        self._note_used()
        self._stored, self._known = archive[:MAC_BYTES], set(files)
        self._say(f"kept compiled code for later starts: {len(files)} files")

    def _is_being_written(self, files: list[Path]) -> bool:
        newest = 0.0
        for file in files:
            with suppress(FileNotFoundError):
                newest = max(newest, file.stat().st_mtime)
        return self._clock.now() - newest < SETTLED_SECONDS

    def _stored_mac(self) -> bytes | None:
        if self._storage.size(self._name) is None:
            return None
        return self._storage.read_range(self._name, 0, MAC_BYTES)

    def _note_used(self) -> None:
        with suppress(OSError):  # it may be read only
            self._storage.write(used_mark(self._folder), stamp(self._clock.now()).encode())

    def _in_time(self, work: Callable[[], None]) -> None:
        """In a thread, which is left alone if the storage does not answer."""

        def attempt() -> None:
            try:
                work()
            except OSError as error:
                self._say(f"compiled code on the storage cannot be reached: {error}")

        thread = Thread(target=attempt, name="compiled", daemon=True)
        thread.start()
        thread.join(self._storage_seconds)
        if thread.is_alive():
            self._say(f"compiled code on the storage: no answer for {self._storage_seconds:g} s")
