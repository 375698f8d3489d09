"""Files of tensors, and their digests: one for each block, so that a reader of some rows verifies
what it reads, and reads nothing else for it."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import xxhash
from pydantic import Field, model_validator

from headway.errors import BadInput
from headway.spec.section import Section
from headway.state.store import NUM_LOCAL_READERS, NUM_REQUESTS, Store, in_parallel

BLOCK_BYTES = 2**22
"""Of new files. Smaller blocks would make manifests larger (9 bytes a MB now), larger ones readers
of few rows read more beside them."""
READ_BYTES = 2**23
"""Bytes of one request."""
OF_THE_FILE = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EIO)
"""Errors that mean that a file on this machine is missing or damaged. Others pass: too many open
files, a network file system that does not answer."""


class StoredFile(Section):
    size: int
    """Size in bytes."""
    block_bytes: Annotated[int, Field(ge=1)]
    """Size of a block; the last one may be smaller."""
    blocks: tuple[str, ...]
    """xxh3_128 digest of each block, hexadecimal."""

    @model_validator(mode="after")
    def _has_all_blocks(self) -> StoredFile:
        if len(self.blocks) != -(-self.size // self.block_bytes):
            raise ValueError(f"{len(self.blocks)} blocks are not all of {self.size} bytes")
        return self


class DamagedFile(BadInput):
    def __init__(self, location: str, name: str) -> None:
        super().__init__(f"{location} is damaged: wrong digest")
        self.name = name


class BlockDigests:
    """Of a file that is being written."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._size = 0
        self._blocks: list[str] = []
        self._digest = xxhash.xxh3_128()

    def update(self, content: bytes | memoryview) -> None:
        rest = memoryview(content)
        while len(rest):
            room = self._block_bytes - self._size % self._block_bytes
            self._digest.update(rest[:room])
            self._size += len(rest[:room])
            rest = rest[room:]
            if self._size % self._block_bytes == 0:
                self._end_block()

    def stored(self) -> StoredFile:
        """At the end of the file."""
        if self._size % self._block_bytes:
            self._end_block()
        return StoredFile(
            size=self._size, block_bytes=self._block_bytes, blocks=tuple(self._blocks)
        )

    def _end_block(self) -> None:
        self._blocks.append(self._digest.hexdigest())
        self._digest.reset()


def reads_of(
    wanted: Iterable[tuple[int, int]], stored: StoredFile | None
) -> Iterator[tuple[int, int]]:
    """What to read, as [start, end), for these ranges of a file: whole blocks, each once, in order,
    neighbours in one request."""
    block_bytes = stored.block_bytes if stored is not None else 1
    merged: list[tuple[int, int]] = []
    for first, last in sorted(wanted):
        start, end = first - first % block_bytes, last + -last % block_bytes
        if merged and start <= merged[-1][1]:
            start, end = merged[-1][0], max(end, merged.pop()[1])
        merged.append((start, end))
    each = max(block_bytes, READ_BYTES - READ_BYTES % block_bytes)
    for start, end in merged:
        if stored is not None:
            end = min(end, stored.size)
        for at in range(start, end, each):
            yield at, min(at + each, end)


@dataclass(frozen=True)
class VerifiedRead:
    """Fills the places, one after the other, with a file's blocks from `start` on."""

    start: int
    places: list[memoryview]


def read_verified(
    store: Store,
    name: str,
    reads: Iterable[VerifiedRead],
    stored: StoredFile | None,
) -> Iterator[VerifiedRead]:
    """The reads, in order, each when its places are filled and verified. Several are read at the
    same time; the next ones are taken when they are begun. Raises DamagedFile."""

    def read(piece: VerifiedRead) -> VerifiedRead:
        try:
            count = store.read_into(name, piece.start, piece.places)
        except OSError as error:
            if stored is None or not store.is_local or error.errno not in OF_THE_FILE:
                raise  # the store failed, which says nothing about the file
            count = 0
        if count < sum(map(len, piece.places)) or not _blocks_are_right(piece, stored):
            raise DamagedFile(store.location(name), name.rsplit("/", 1)[-1])
        return piece

    num_readers = NUM_LOCAL_READERS if store.is_local else NUM_REQUESTS
    return in_parallel(read, reads, num_readers)


def _blocks_are_right(read: VerifiedRead, stored: StoredFile | None) -> bool:
    if stored is None:
        return True
    digests = BlockDigests(stored.block_bytes)
    for place in read.places:
        digests.update(place)
    found, first = digests.stored().blocks, read.start // stored.block_bytes
    return found == stored.blocks[first : first + len(found)]


def content_is_right(store: Store, name: str, stored: StoredFile) -> bool:
    """Whether a file has the recorded digests. Reads all of it."""
    pieces = reads_of([(0, stored.size)], stored)
    reads = (VerifiedRead(at, [memoryview(bytearray(end - at))]) for at, end in pieces)
    try:
        for _ in read_verified(store, name, reads, stored):
            pass
    except DamagedFile:
        return False
    return True
