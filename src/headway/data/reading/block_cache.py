"""Blocks of sets in object stores, cached on this machine's disk for all of its processes.

    FOLDER/                           blocks/ in $HEADWAY_CACHE, by default ~/.cache/headway
      lock                            held briefly, to make room or to register needed blocks
      usage                           bytes stored or being written: never an underestimate
      readers/READER                  the blocks that a process needs now or next; it locks the file
                                      while it lives, and no process removes those blocks
      SET/1000.12                     a block: its content, then its digest
      SET/.1000.12.READER             being written by that process

A file is written under another name and renamed, so a killed process leaves no partial block; the
digest, checked whenever a file is opened, detects files that a power failure left incomplete. The
least recently opened block is removed first. A file that is removed while another process has it
mapped stays readable there.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO
from uuid import uuid4

import numpy as np
import xxhash

from headway.errors import BadInput

CACHE_BYTES = 2**34
"""Default size limit: 16 GiB. Two mixing windows of 64 blocks take a quarter of 1 GiB, so many sets
and epochs fit."""
FREE_SHARE, MOST_FREE_BYTES = 20, 2**34
"""Space that stays free on the disk in any case: one part in FREE_SHARE, at most MOST_FREE_BYTES.
Checkpoints may be on it."""
SLACK_SHARE = 16
"""Eviction frees one part in SLACK_SHARE of the limit at once: finding what to remove reads the
whole folder."""
DIGEST_BYTES = 16
LOCK_SECONDS, LOCK_PAUSE_SECONDS = 5.0, 0.005

_LOCK, _USAGE, _READERS = "lock", "usage", "readers"


def cache_bytes() -> int:
    text = os.environ.get("HEADWAY_CACHE_BYTES")
    if not text:
        return CACHE_BYTES
    if not text.isascii() or not text.isdigit():
        raise BadInput(
            f"HEADWAY_CACHE_BYTES is {text!r}, not a number of bytes", f"for example {CACHE_BYTES}"
        )
    return int(text)


@dataclass(frozen=True)
class _Stored:
    used: float
    """Time when the block was last opened."""
    name: str
    size: int


class BlockCache:
    """Access of one process to the folder. Creates nothing on disk until a block is stored."""

    def __init__(self, folder: Path, bound_bytes: int) -> None:
        self.folder = folder
        self.bound_bytes = bound_bytes
        self._reader = uuid4().hex[:12]
        self._lease: IO[str] | None = None
        self._mutex = Lock()  # between threads; the file `lock` is between processes

    def has(self, name: str, size: int) -> bool:
        """Whether a block of this size seems to be stored; `find` also checks its content."""
        try:
            return os.stat(self.folder / name).st_size == size + DIGEST_BYTES
        except OSError:
            return False

    def find(self, name: str, size: int) -> np.ndarray | None:
        """The block's bytes, memory-mapped; None if it is missing or damaged."""
        path = self.folder / name
        if not self.has(name, size):
            return None
        try:
            mapped = np.memmap(path, dtype=np.uint8, mode="r")
        except (OSError, ValueError):  # removed in the meantime; ValueError: it is empty now
            return None
        content = mapped[:size]
        if xxhash.xxh3_128_digest(content.data) != mapped[size:].tobytes():
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        return content

    def put(self, name: str, content: bytes) -> bool:
        """Stores a block. False if only needed blocks could make room; OSError if the disk or the
        folder cannot be written."""
        if self.has(name, len(content)):
            return True  # another process was faster
        path = self.folder / name
        partial = path.with_name(f".{path.name}.{self._reader}")
        if not self._reserve(partial, len(content) + DIGEST_BYTES):
            return False
        try:
            with partial.open("r+b") as file:
                file.write(content)
                file.write(xxhash.xxh3_128_digest(content))
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        return True

    def protect(self, names: Collection[str]) -> None:
        """Protects these blocks from removal, instead of those named before."""
        if not names and self._lease is None:
            return
        with self._locked():
            lease = self._own_lease()
            lease.seek(0)
            lease.truncate()
            lease.writelines(f"{name}\n" for name in names)
            lease.flush()

    def close(self) -> None:
        if self._lease is not None:
            self._lease.close()
            with suppress(OSError):
                (self.folder / _READERS / self._reader).unlink()
            self._lease = None

    def _reserve(self, partial: Path, size: int) -> bool:
        """Creates a file of the block's full size, so that other processes count it."""
        with self._locked():
            self._own_lease()
            usage = self._usage()
            if usage is None or usage + size > self._limit(usage):
                usage = self._make_room(size)
            if usage + size > self._limit(usage):
                return False
            # First the count, then the file: if the process is killed in between, the count is too
            # high, not too low, and the next scan of the whole folder corrects it.
            (self.folder / _USAGE).write_text(str(usage + size))
            partial.parent.mkdir(exist_ok=True)
            with partial.open("wb") as file:
                file.truncate(size)
            return True

    def _usage(self) -> int | None:
        try:
            return int((self.folder / _USAGE).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _limit(self, usage: int) -> int:
        """Bytes that may be used, given `usage` now: the bound, or less if the disk fills up."""
        disk = os.statvfs(self.folder)
        to_leave = min(disk.f_blocks * disk.f_frsize // FREE_SHARE, MOST_FREE_BYTES)
        return min(self.bound_bytes, usage + disk.f_bavail * disk.f_frsize - to_leave)

    def _make_room(self, size: int) -> int:
        """Removes the least recently used blocks that no process needs; returns the remaining
        bytes."""
        protected, alive = self._readers()
        stored = list(self._stored(alive))
        usage = sum(block.size for block in stored)
        limit = self._limit(usage)
        if usage + size <= limit:
            return usage
        wanted = limit - size - self.bound_bytes // SLACK_SHARE
        for block in sorted(stored, key=lambda block: (block.used, block.name)):
            if usage <= wanted:
                break
            if block.name not in protected and not Path(block.name).name.startswith("."):
                (self.folder / block.name).unlink(missing_ok=True)
                usage -= block.size
        return usage

    def _readers(self) -> tuple[set[str], set[str]]:
        """The blocks that living processes need, and the names of these processes."""
        protected: set[str] = set()
        alive: set[str] = set()
        for entry in os.scandir(self.folder / _READERS):
            # A reader that exits now removes its own file.
            with suppress(FileNotFoundError), open(entry.path) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    alive.add(entry.name)
                    protected.update(file.read().splitlines())
                else:
                    os.unlink(entry.path)  # its owner is dead
        return protected, alive

    def _stored(self, alive: set[str]) -> Iterator[_Stored]:
        """Every block, including those being written; removes what dead processes left."""
        for set_folder in os.scandir(self.folder):
            if not set_folder.is_dir() or set_folder.name == _READERS:
                continue
            num_files = 0
            for entry in os.scandir(set_folder.path):
                if entry.name.startswith(".") and entry.name.rpartition(".")[2] not in alive:
                    os.unlink(entry.path)
                    continue
                num_files += 1
                with suppress(FileNotFoundError):  # renamed, or removed as damaged, in the meantime
                    facts = entry.stat()
                    yield _Stored(facts.st_mtime, f"{set_folder.name}/{entry.name}", facts.st_size)
            if num_files == 0:
                with suppress(OSError):
                    os.rmdir(set_folder.path)

    def _own_lease(self) -> IO[str]:
        """The file that shows that this process is alive and what it needs. Created under the lock,
        so that no process sees it before it is locked."""
        if self._lease is None:
            folder = self.folder / _READERS
            folder.mkdir(exist_ok=True)
            lease = (folder / self._reader).open("w")
            fcntl.flock(lease, fcntl.LOCK_EX)
            self._lease = lease
        return self._lease

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclusive access to the folder. OSError on timeout: a process that was suspended while it
        held the lock must not block the others."""
        with self._mutex:
            self.folder.mkdir(parents=True, exist_ok=True)
            with file_lock(self.folder / _LOCK, LOCK_SECONDS):
                yield


@contextmanager
def file_lock(path: Path, seconds: float) -> Iterator[None]:
    """Holds a lock between processes. OSError if another holds it for longer than `seconds`."""
    with path.open("a") as file:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OSError(f"{file.name} is held by another process") from None
                time.sleep(LOCK_PAUSE_SECONDS)
        yield
