"""Files of tensors, and their digests: one for each block, so that a reader of some rows verifies
what it reads, and reads nothing else for it."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
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


class WholeFile(Section):
    """A file of a checkpoint of version 1."""

    size: int
    """Size in bytes."""
    xxh3: str
    """xxh3_128 digest of the whole file, hexadecimal."""


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
    wanted: Iterable[tuple[int, int]], stored: StoredFile | WholeFile | None
) -> Iterator[tuple[int, int]]:
    """What to read, as [start, end), for these ranges of a file: whole blocks, each once, in order,
    neighbours in one request."""
    block_bytes = stored.block_bytes if isinstance(stored, StoredFile) else 1
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


def verified_reads(
    store: Store,
    name: str,
    wanted: Iterable[tuple[int, int]],
    stored: StoredFile | WholeFile | None,
) -> Iterator[tuple[int, bytes]]:
    """Contents that cover these ranges of a file, each with its offset, in order. Several are read
    at the same time, and verified before they are returned."""

    def read(piece: tuple[int, int]) -> tuple[int, bytes]:
        start, end = piece
        try:
            content = store.read_range(name, start, end - start)
        except OSError as error:
            if stored is None or not store.is_local or error.errno not in OF_THE_FILE:
                raise  # the store failed, which says nothing about the file
            content = b""
        if len(content) < end - start or not _blocks_are_right(content, start, stored):
            raise DamagedFile(store.location(name), name.rsplit("/", 1)[-1])
        return start, content

    num_readers = NUM_LOCAL_READERS if store.is_local else NUM_REQUESTS
    return in_parallel(read, list(reads_of(wanted, stored)), num_readers)


def _blocks_are_right(content: bytes, start: int, stored: StoredFile | WholeFile | None) -> bool:
    if not isinstance(stored, StoredFile):
        return True
    each, view = stored.block_bytes, memoryview(content)
    expected = stored.blocks[start // each :]
    found = (xxhash.xxh3_128_hexdigest(view[at : at + each]) for at in range(0, len(view), each))
    return all(digest == expected[index] for index, digest in enumerate(found))


def content_is_right(store: Store, name: str, stored: StoredFile | WholeFile) -> bool:
    """Whether a file has the recorded digests. Reads all of it."""
    whole = xxhash.xxh3_128()
    try:
        for _, content in verified_reads(store, name, [(0, stored.size)], stored):
            if isinstance(stored, WholeFile):
                whole.update(content)
    except DamagedFile:
        return False
    return isinstance(stored, StoredFile) or whole.hexdigest() == stored.xxh3
