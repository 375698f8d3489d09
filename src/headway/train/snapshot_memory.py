"""Parts of snapshots in the memory of a node: files of a tmpfs, which outlive the worker processes.

For each rank of the node two parts of its own and two of its neighbour's:

    own-0.safetensors  own-0.json     the part, and what it is; written when the part is complete
    own-1.safetensors  own-1.json
    kept-0.safetensors ...

The newer one of each two is replaced only when the older one is no longer needed. Nothing here is
written to a disk, and nothing survives the node.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from headway.memory_limits import Memory, byte_size
from headway.state.checkpoints import RankManifest
from headway.train.snapshot_choice import HeldPart, Name

Kind = Literal["own", "kept"]
KINDS: tuple[Kind, ...] = ("own", "kept")
IN_A_POD = "; in a pod: pod.resources.memory of the target"
COPIES = 2
"""Of each kind: the newest complete one stays until the next is complete everywhere."""
LEFT_ALONE = 10
"""One part in so many of /dev/shm, and of the memory that this process may use..."""
MOST_LEFT_ALONE = 2**30
"""... but no more bytes, for all that is not snapshots, such as NCCL's buffers."""


class NoRoom(Exception):
    """The memory of this node is too small."""


class PartFacts(msgspec.Struct, frozen=True):
    """What is written beside a part."""

    name: Name
    part: int
    num_parts: int
    manifest: str
    """RankManifest of the part, as JSON: its tensors, and the digests of its blocks."""
    facts: dict[str, Any]
    """Of the state: what a checkpoint's manifest has besides tensors."""
    saved: Name | None = None
    """The newest checkpoint, as far as this rank knew..."""
    saved_at: float | None = None
    """... and when it was made, in seconds since 1970."""
    records: list[list[dict[str, Any]]] = []
    """Lines of the logs since then. Only of the leader."""

    @property
    def held(self) -> HeldPart:
        return HeldPart(self.name, self.part, self.num_parts)

    def rank_manifest(self) -> RankManifest:
        return RankManifest.model_validate_json(self.manifest)


class PartFile:
    """One of the files, and what is in it."""

    def __init__(self, folder: Path, kind: Kind, number: int) -> None:
        self.kind = kind
        self.path = folder / f"{kind}-{number}.safetensors"
        self._record = folder / f"{kind}-{number}.json"
        self.facts = self._read()

    @property
    def name(self) -> Name | None:
        """Of the complete part in it."""
        return None if self.facts is None else self.facts.name

    @property
    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def clear(self) -> None:
        """Its content is about to be replaced."""
        self.facts = None
        self._record.unlink(missing_ok=True)

    def resize(self, num_bytes: int, memory: Memory, spare: int = 0) -> None:
        """Reserves the memory: a page that is missing later would end the process by SIGBUS.
        `spare`: bytes that the node's processes have yet to take, for the copy of a checkpoint."""
        before = self.size
        if before == num_bytes:
            return
        self.clear()
        # One rank of the node after the other: all would see the same memory as free.
        with _locked(self.path.parent.parent):
            self._reserve(before, num_bytes, memory, spare)

    def _reserve(self, before: int, num_bytes: int, memory: Memory, spare: int) -> None:
        more = num_bytes - before
        room, left_alone = _room(self.path.parent, memory, spare)
        if more > max(0, room):
            raise NoRoom(
                f"{byte_size(more)} more in {self.path.parent} are needed and "
                f"{byte_size(max(0, room))} are free besides {byte_size(left_alone)} that are left "
                f"alone{IN_A_POD}"
            )
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if more < 0:
                os.ftruncate(descriptor, num_bytes)
            else:
                # Makes the file longer only when it has the memory: a worker that dies before that
                # leaves none of this size without it.
                os.posix_fallocate(descriptor, 0, num_bytes)
        except OSError as error:
            os.ftruncate(descriptor, before)
            if error.errno != errno.ENOSPC:
                raise
            raise NoRoom(
                f"{self.path.parent} is full: {byte_size(more)} more are needed{IN_A_POD}"
            ) from None
        finally:
            os.close(descriptor)

    def mapped(self) -> mmap.mmap:
        with self.path.open("r+b") as file:
            return mmap.mmap(file.fileno(), self.size)

    def complete(self, facts: PartFacts) -> None:
        partial = self._record.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(facts))
        partial.rename(self._record)
        self.facts = facts

    def _read(self) -> PartFacts | None:
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=PartFacts)
        except (FileNotFoundError, msgspec.DecodeError):
            return None


class SnapshotMemory:
    """The parts that one rank of a node is responsible for."""

    def __init__(self, folder: Path, memory: Memory | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.memory = memory or Memory()
        self.files = [PartFile(folder, kind, n) for kind in KINDS for n in range(COPIES)]

    def complete_parts(self) -> Iterator[PartFile]:
        return (file for file in self.files if file.facts is not None)

    def held(self) -> list[HeldPart]:
        return [file.facts.held for file in self.files if file.facts is not None]

    def find(self, name: Name, part: int) -> PartFile | None:
        for file in self.files:
            facts = file.facts  # another thread may clear it
            if facts is not None and (facts.name, facts.part) == (name, part):
                return file
        return None

    def replaceable(self, kind: Kind, needed: Name | None) -> PartFile:
        """The file for the next part of this kind, emptied: not the one with the part of a
        snapshot that is still needed."""
        of_kind = [file for file in self.files if file.kind == kind]
        free = [file for file in of_kind if file.name is None or file.name != needed]
        # Rather the one without a complete part, or the older one.
        file = min(free, key=lambda one: one.name or (-1, -1))
        file.clear()
        return file

    def remove_all_but(self, needed: Name | None) -> None:
        for file in self.files:
            if file.name is None or file.name != needed:
                file.clear()
                file.path.unlink(missing_ok=True)


def _room(folder: Path, memory: Memory, spare: int) -> tuple[int, int]:
    """Bytes that snapshots may still take, and those that are left alone."""
    found = os.statvfs(folder)
    size, free = (number * found.f_frsize for number in (found.f_blocks, found.f_bavail))
    limits = ((size, free), (memory.limit_bytes(), memory.available_bytes()))
    left_alone = [min(most // LEFT_ALONE, MOST_LEFT_ALONE) for most, _ in limits]
    left_alone[1] += spare
    return min((free - left, left) for (_, free), left in zip(limits, left_alone, strict=True))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Of a node, whose ranks are ended together: none waits for one that was suspended."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
