"""Verifies tokens when they are first read, in pages: whole shards are too large for that.

Each page has a digest in its shard's file of pages, which has one in the table of shards. Sets of
version 2 have no pages; ids beyond the vocabulary are refused in them, too, before a model is asked
for their embeddings.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from threading import Lock

import numpy as np
import xxhash

from headway.data.reading.block_cache import BlockCache
from headway.data.reading.token_stream import ShardIndex
from headway.data.set_format import shard_file
from headway.data.shard_table import PAGE_TOKENS, Part, page_digests, pages_bytes
from headway.errors import BadInput
from headway.state.store import Store

INTACT = "prepare the set again, or fetch an intact copy"
MAX_SHARDS = 64
"""Shards whose digests are kept in memory: some 64 KiB each. A mixing window is in two or three."""


class Pages:
    """The digests of a set's pages, read when they are needed. With `cache`, all processes of this
    machine share them. Thread-safe."""

    def __init__(
        self, store: Store, index: ShardIndex, cache: BlockCache | None = None, name: str = ""
    ) -> None:
        self.index = index
        self._store = store
        self._cache = cache
        self._name = name
        self._digests: OrderedDict[int, np.ndarray] = OrderedDict()
        self._lock = Lock()

    def check(self, shard: int, part: Part, begin: int, content: np.ndarray) -> None:
        """Raises BadInput if pages are damaged. `content` is whole pages: the shard's items from
        `begin` on."""
        first = begin // PAGE_TOKENS
        if self.index.has_pages:
            found = page_digests(content.data.cast("B"), PAGE_TOKENS * content.itemsize)
            recorded = self._of(shard, part)[first : first + len(found)].tolist()
            if found != recorded:
                page = first + next(i for i, digest in enumerate(found) if digest != recorded[i])
                raise self._damaged(shard, page, part)
        if part == "tokens" and self.index.may_exceed_vocabulary:
            largest = int(content.max())
            if largest >= self.index.vocab_size:
                raise BadInput(
                    f"{self._store.root}: shard {self.index.table.name(shard)} has the token id "
                    f"{largest}, but the vocabulary has {self.index.vocab_size} tokens",
                    f"see whether it is damaged: headway data verify {self._store.root}",
                )

    def _of(self, shard: int, part: Part) -> np.ndarray:
        with self._lock:  # also while they are read: others wait for the same shard, usually
            if shard not in self._digests:
                self._digests[shard] = self._verified(shard)
                if len(self._digests) > MAX_SHARDS:
                    self._digests.popitem(last=False)
            self._digests.move_to_end(shard)
            digests = self._digests[shard]
        num_pages = -(-self.index.num_tokens_of(shard) // PAGE_TOKENS)
        return digests[:num_pages] if part == "tokens" else digests[num_pages:]

    def _verified(self, shard: int) -> np.ndarray:
        table = self.index.table
        file = shard_file(table.name(shard), "pages")
        size = pages_bytes(self.index.num_tokens_of(shard), bool(table.has_mask[shard]))
        cached = f"{self._name}/pages.{table.name(shard)}"
        found = self._cache.find(cached, size) if self._cache is not None else None
        if found is not None:
            return np.array(found).view("<u4")
        try:
            content = self._store.read(file)
        except FileNotFoundError:
            raise BadInput(f"{self._store.location(file)} is missing", INTACT) from None
        if xxhash.xxh3_128_digest(content) != table.pages[shard].tobytes() or len(content) != size:
            raise BadInput(f"{self._store.location(file)} is damaged", self._hint)
        if self._cache is not None:
            with suppress(OSError):
                self._cache.put(cached, content)
        return np.frombuffer(content, "<u4")

    @property
    def _hint(self) -> str:
        return f"see what else is damaged: headway data verify {self._store.root}; then {INTACT}"

    def _damaged(self, shard: int, page: int, part: Part) -> BadInput:
        begin = page * PAGE_TOKENS
        end = min(begin + PAGE_TOKENS, self.index.num_tokens_of(shard))
        what = "tokens" if part == "tokens" else "loss mask of the tokens"
        return BadInput(
            f"{self._store.root} is damaged: the {what} {begin} to {end - 1} of shard "
            f"{self.index.table.name(shard)} are not those that were prepared",
            self._hint,
        )


class ShardReader:
    """Reads ranges of shards in a store, verified."""

    def __init__(self, store: Store, pages: Pages) -> None:
        self._store = store
        self._pages = pages

    def read(self, shard: int, begin: int, end: int, part: Part) -> memoryview:
        """The bytes of the shard's tokens [begin, end), or of their mask. OSError if the store does
        not answer."""
        index = self._pages.index
        if part == "mask" and not index.table.has_mask[shard]:
            return memoryview(b"\x01" * (end - begin))
        first, last = begin, end
        if index.has_pages:
            first = begin // PAGE_TOKENS * PAGE_TOKENS
            last = min(-(-end // PAGE_TOKENS) * PAGE_TOKENS, index.num_tokens_of(shard))
        item_bytes = index.token_bytes if part == "tokens" else 1
        name = shard_file(index.table.name(shard), part)
        try:
            content = self._store.read_range(name, first * item_bytes, (last - first) * item_bytes)
        except FileNotFoundError:
            raise BadInput(f"{self._store.location(name)} is missing", INTACT) from None
        if len(content) != (last - first) * item_bytes:
            raise BadInput(
                f"{self._store.location(name)} ends before byte {last * item_bytes}: it is shorter "
                "than the manifest says",
                INTACT,
            )
        self._pages.check(shard, part, first, np.frombuffer(content, f"<u{item_bytes}"))
        inside = slice((begin - first) * item_bytes, (end - first) * item_bytes)
        return memoryview(content)[inside]
