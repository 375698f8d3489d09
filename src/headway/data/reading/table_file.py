"""Opens the table of a set's shards: mapped, and fetched once a node if the set is in a store."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import numpy as np
import xxhash

from headway.clock import Clock
from headway.data.reading.block_cache import file_lock
from headway.data.reading.pages import INTACT
from headway.data.retry import OPEN_SECONDS, with_retries
from headway.data.set_format import SetManifest, file_digest
from headway.data.shard_table import ShardTable
from headway.errors import BadInput
from headway.state.store import Store

FETCH_SECONDS = 60.0
"""Time to wait for another process of this machine that fetches the table. After that, each fetches
its own, into memory."""


def open_table(store: Store, manifest: SetManifest, cache: Path, clock: Clock) -> ShardTable:
    """The shards of a set. The digest is checked; the file is read for that, but not kept."""
    if manifest.listed is not None:
        return manifest.listed
    name, digest = manifest.shard_table, manifest.shard_table_digest

    def fetched() -> bytes:
        content = with_retries(store, name, read, clock, OPEN_SECONDS)
        if xxhash.xxh3_128_hexdigest(content) != digest:
            where = store.location(name)
            raise BadInput(f"{where} is damaged: the manifest gives another digest", INTACT)
        return content

    def read() -> bytes:
        try:
            return store.read(name)
        except FileNotFoundError:
            raise BadInput(f"{store.location(name)} is missing", INTACT) from None

    if store.is_local:
        table = _mapped(store.path(name), digest)
        return table or ShardTable.from_bytes(fetched())  # which says what is wrong
    path = cache / "tables" / f"{digest}.table"
    if (table := _mapped(path, digest)) is not None:
        return table
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(path.parent / "lock", FETCH_SECONDS):
            if (table := _mapped(path, digest)) is None:
                _place(fetched(), path)
                table = _mapped(path, digest)
            if table is not None:
                return table
    return ShardTable.from_bytes(fetched())  # the cache cannot be written


def _mapped(path: Path, digest: str) -> ShardTable | None:
    """None if the file is missing or has another content."""
    try:
        if file_digest(path) == digest:
            return ShardTable.from_bytes(np.asarray(np.memmap(path, np.uint8, mode="r")))
    except (OSError, ValueError):
        pass
    return None


def _place(content: bytes, path: Path) -> None:
    partial = path.with_name(f".{path.name}.{uuid4().hex[:12]}")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
