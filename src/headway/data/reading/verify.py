"""Checks that a set's files match its manifest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import xxhash

from headway.clock import Clock, SystemClock
from headway.data.reading.table_file import open_table
from headway.data.retry import OPEN_SECONDS, READ_SECONDS, with_retries
from headway.data.set_format import SHARDS, TOKENIZER, SetManifest, read_manifest, shard_file
from headway.data.shard_table import ShardTable
from headway.errors import BadInput
from headway.state.store import Store
from headway.state.user_cache import cache_root

CHUNK_BYTES = 2**23
"""Bytes per read: large enough that the latency of a network request does not matter."""
NUM_REQUESTS = 8
"""Number of parallel requests over a network. A disk is read by one thread: that is fastest."""


@dataclass(frozen=True)
class Damage:
    shard: str | None
    """Shard of the damaged file; None for the manifest and the tokenizer."""
    message: str


@dataclass(frozen=True)
class _Expected:
    shard: str | None
    file: str
    digest: str


def verify_set(store: Store, clock: Clock | None = None) -> list[Damage]:
    """What is wrong with a set's files, by reading all of them; empty if nothing is."""
    clock = clock or SystemClock()

    def look() -> tuple[SetManifest, dict[str, int]]:
        return read_manifest(store), _sizes(store, SHARDS) | _sizes(store, TOKENIZER)

    manifest, sizes = with_retries(store, "", look, clock, OPEN_SECONDS)
    try:
        table = open_table(store, manifest, cache_root(), clock)
    except BadInput as error:
        return [Damage(None, error.message)]
    damages = [Damage(None, problem) for problem in manifest.problems(table)]
    damages += _wrong_sizes(store, manifest, table, sizes)
    wrong_content = _damaged(store, manifest, table, sizes, clock)
    return [*damages, *wrong_content]


def size_problems(store: Store, manifest: SetManifest, table: ShardTable) -> list[Damage]:
    """Shard files of the wrong size, from one listing: in a store, each query is a request."""
    return _wrong_sizes(store, manifest, table, _sizes(store, SHARDS))


def _wrong_sizes(
    store: Store, manifest: SetManifest, table: ShardTable, sizes: dict[str, int]
) -> list[Damage]:
    damages = []
    for shard in table:
        for part, size in shard.sizes(manifest.token_bytes).items():
            file = shard_file(shard.name, part)
            found = sizes.get(file)
            if found is None:
                damages.append(Damage(shard.name, f"{store.location(file)} is missing"))
            elif found != size:
                words = f"{store.location(file)} has {found} bytes, the manifest says {size}"
                damages.append(Damage(shard.name, words))
    return damages


def _damaged(
    store: Store, manifest: SetManifest, table: ShardTable, sizes: dict[str, int], clock: Clock
) -> Iterator[Damage]:
    """Files with wrong content. A shard's missing file is already among the wrong sizes."""

    def problem(expected: _Expected) -> str | None:
        where = store.location(expected.file)
        if expected.file not in sizes:
            return f"{where} is missing" if expected.shard is None else None
        if _digest(store, expected.file, sizes[expected.file], clock) != expected.digest:
            return f"{where} is damaged: its content does not have the recorded digest"
        return None

    expected = list(_expected(manifest, table))
    with ThreadPoolExecutor(1 if store.is_local else NUM_REQUESTS) as pool:
        for file, words in zip(expected, pool.map(problem, expected), strict=True):
            if words is not None:
                yield Damage(file.shard, words)


def _expected(manifest: SetManifest, table: ShardTable) -> Iterator[_Expected]:
    yield _Expected(None, f"{TOKENIZER}/tokenizer.json", manifest.tokenizer_digest)
    for shard in table:
        for part in shard.sizes(manifest.token_bytes):
            digest = shard.digests.get(part, "")
            yield _Expected(shard.name, shard_file(shard.name, part), digest)


def _digest(store: Store, file: str, size: int, clock: Clock) -> str:
    hasher = xxhash.xxh3_128()
    for start in range(0, size, CHUNK_BYTES):

        def read(start: int = start) -> bytes:
            return store.read_range(file, start, min(CHUNK_BYTES, size - start))

        hasher.update(with_retries(store, file, read, clock, READ_SECONDS))
    return hasher.hexdigest()


def _sizes(store: Store, folder: str) -> dict[str, int]:
    """Size of each file in a folder, by name."""
    if not store.is_local:
        return {name: facts.size for name, facts in store.facts(folder).items()}
    try:
        with os.scandir(store.path(folder)) as entries:
            return {
                f"{folder}/{entry.name}": entry.stat().st_size
                for entry in entries
                if entry.is_file()
            }
    except (FileNotFoundError, NotADirectoryError):
        return {}
