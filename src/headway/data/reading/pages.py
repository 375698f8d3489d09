"""Verifies tokens when they are first read, in pages: whole shards are too large for that.

Each page has a digest in its shard's file of pages. Sets of version 2 have none: in them, ids
beyond the vocabulary are refused, before a model is asked for their embeddings.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

import numpy as np

from headway.data.reading.token_stream import ShardIndex
from headway.data.set_format import shard_file
from headway.data.shard_table import PAGE_DIGEST_BYTES, PAGE_TOKENS, Part, page_digests, pages_bytes
from headway.errors import BadInput
from headway.state.store import Store

INTACT = "prepare the set again, or fetch an intact copy"
CHUNK_PAGES = 512
"""Digests that are read at once: those of a block of the order."""
MAX_CHUNKS = 2048
"""Chunks kept in memory, of 2 KiB each. A mixing window has 64 blocks."""


class Pages:
    """The digests of a set's pages, read when they are needed. Thread-safe."""

    def __init__(self, store: Store, index: ShardIndex) -> None:
        self.index = index
        self._store = store
        self._chunks: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()
        self._lock = Lock()

    def check(self, shard: int, part: Part, begin: int, content: np.ndarray) -> None:
        """Raises BadInput if pages are damaged. `content` is whole pages: the shard's items from
        `begin` on."""
        first = begin // PAGE_TOKENS
        if self.index.has_pages:
            found = page_digests(content.data.cast("B"), PAGE_TOKENS * content.itemsize)
            recorded = self._recorded(shard, part, first, len(found))
            if found != recorded:
                self._forget(shard)  # the digests may be those that are damaged
                recorded = self._recorded(shard, part, first, len(found))
            if found != recorded:
                page = first + next(i for i, digest in enumerate(found) if digest != recorded[i])
                raise self._damaged(shard, page, part)
        elif part == "tokens" and self.index.may_exceed_vocabulary:
            largest = int(content.max())
            if largest >= self.index.vocab_size:
                raise BadInput(
                    f"{self._store.root}: shard {self.index.table.name(shard)} has the token id "
                    f"{largest}, but the vocabulary has {self.index.vocab_size} tokens",
                    f"see whether it is damaged: headway data verify {self._store.root}",
                )

    def _recorded(self, shard: int, part: Part, first: int, count: int) -> list[int]:
        if part == "mask":
            first += -(-self.index.num_tokens_of(shard) // PAGE_TOKENS)
        chunks = range(first // CHUNK_PAGES, (first + count - 1) // CHUNK_PAGES + 1)
        digests = np.concatenate([self._chunk(shard, number) for number in chunks])
        begin = first - chunks[0] * CHUNK_PAGES
        found: list[int] = digests[begin : begin + count].tolist()
        return found

    def _chunk(self, shard: int, number: int) -> np.ndarray:
        with self._lock:
            if (found := self._chunks.get((shard, number))) is not None:
                self._chunks.move_to_end((shard, number))
                return found
        digests = self._read_chunk(shard, number)
        with self._lock:
            self._chunks[shard, number] = digests
            if len(self._chunks) > MAX_CHUNKS:
                self._chunks.popitem(last=False)
        return digests

    def _forget(self, shard: int) -> None:
        with self._lock:
            for key in [key for key in self._chunks if key[0] == shard]:
                del self._chunks[key]

    def _read_chunk(self, shard: int, number: int) -> np.ndarray:
        table = self.index.table
        file = shard_file(table.name(shard), "pages")
        size = pages_bytes(self.index.num_tokens_of(shard), bool(table.has_mask[shard]))
        begin = number * CHUNK_PAGES * PAGE_DIGEST_BYTES
        end = min(size, begin + CHUNK_PAGES * PAGE_DIGEST_BYTES)
        return np.frombuffer(_range(self._store, file, begin, end), "<u4")

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
        where, dtype = (first * item_bytes, last * item_bytes), f"<u{item_bytes}"
        content = _range(self._store, name, *where)
        try:
            self._pages.check(shard, part, first, np.frombuffer(content, dtype))
        except BadInput:  # perhaps it was damaged on its way
            content = _range(self._store, name, *where)
            self._pages.check(shard, part, first, np.frombuffer(content, dtype))
        inside = slice((begin - first) * item_bytes, (end - first) * item_bytes)
        return memoryview(content)[inside]


def _range(store: Store, file: str, begin: int, end: int) -> bytes:
    try:
        content = store.read_range(file, begin, end - begin, often=True)
    except FileNotFoundError:
        raise BadInput(f"{store.location(file)} is missing", INTACT) from None
    if len(content) != end - begin:
        raise BadInput(
            f"{store.location(file)} ends before byte {end}: it is shorter than the manifest says",
            INTACT,
        )
    return content
