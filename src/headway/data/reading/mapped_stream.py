"""The stream of a set on this machine's disk: its shards are mapped when they are first needed."""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np

from headway.data.reading.pages import INTACT, Pages
from headway.data.reading.token_stream import ShardIndex
from headway.data.set_format import shard_file
from headway.data.shard_table import PAGE_TOKENS, Part
from headway.errors import BadInput
from headway.state.store import Store

MAX_OPEN_MAPS = 1024
"""Limit of mapped files. Linux allows a process 65,530 mappings; a set of 10^13 tokens has more
files than that."""
PAGES_AT_ONCE = 8
"""Pages that are verified together: no more than the kernel reads ahead on a disk, and a check of
eight costs little more than a check of one."""


def max_open_maps() -> int:
    """Limit of mapped files: each holds a file descriptor; sockets and logs need some too."""
    return min(MAX_OPEN_MAPS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


class MappedStream:
    """Thread-safe."""

    def __init__(self, store: Store, index: ShardIndex, max_maps: int | None = None) -> None:
        self._store = store
        self._index = index
        self._pages = Pages(store, index)
        self._max_maps = max_maps or max_open_maps()
        self._maps: OrderedDict[tuple[int, Part], _MappedFile] = OrderedDict()
        self._lock = Lock()

    def read(
        self, starts: Sequence[int], tokens: np.ndarray, mask: np.ndarray | None, stride: int
    ) -> None:
        for row, start in enumerate(starts):
            filled = 0
            for shard, begin, end in self._index.ranges(start, start + tokens.shape[1]):
                here = slice(filled, filled + end - begin)
                tokens[row, here] = self._map(shard, "tokens").read(begin, end)
                if mask is not None and self._index.table.has_mask[shard]:
                    mask[row, here] = self._map(shard, "mask").read(begin, end) != 0
                filled += end - begin

    def extend(self, index: ShardIndex) -> None:
        self._index = self._pages.index = index

    def close(self) -> None:
        with self._lock:
            self._maps.clear()

    def _map(self, shard: int, part: Part) -> _MappedFile:
        with self._lock:
            found = self._maps.get((shard, part))
            if found is None:
                found = self._maps[shard, part] = self._mapped(shard, part)
                if len(self._maps) > self._max_maps:
                    self._maps.popitem(last=False)
            self._maps.move_to_end((shard, part))
            return found

    def _mapped(self, shard: int, part: Part) -> _MappedFile:
        path = self._store.path(shard_file(self._index.table.name(shard), part))
        dtype = np.dtype(f"<u{self._index.token_bytes}" if part == "tokens" else "u1")
        num_items = self._index.num_tokens_of(shard)
        try:
            if (size := path.stat().st_size) != num_items * dtype.itemsize:
                words = f"{path} has {size} bytes, the manifest says {num_items * dtype.itemsize}"
                raise BadInput(words, INTACT)
            content = np.asarray(np.memmap(path, dtype, mode="r"))
        except FileNotFoundError:
            raise BadInput(f"{path} is missing", INTACT) from None
        return _MappedFile(content, self._pages, shard, part)


class _MappedFile:
    """A file of a shard, whose pages are verified when they are first read."""

    def __init__(self, content: np.ndarray, pages: Pages, shard: int, part: Part) -> None:
        self._content = content
        self._pages = pages
        self._shard = shard
        self._part = part
        self._unverified = bytearray(b"\x01" * -(-len(content) // PAGE_TOKENS))

    def read(self, begin: int, end: int) -> np.ndarray:
        last = (end - 1) // PAGE_TOKENS + 1
        if (first := self._unverified.find(1, begin // PAGE_TOKENS, last)) >= 0:
            first -= first % PAGES_AT_ONCE
            last = min(last + -last % PAGES_AT_ONCE, len(self._unverified))
            whole = self._content[first * PAGE_TOKENS : last * PAGE_TOKENS]
            self._pages.check(self._shard, self._part, first * PAGE_TOKENS, whole)
            self._unverified[first:last] = bytes(last - first)
        return self._content[begin:end]
