"""A set's tokens as one stream across its shards; and reading it from this machine's disk."""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import NamedTuple, Protocol

import numpy as np

from headway.data.set_format import SetManifest, shard_file
from headway.data.shard_table import Part
from headway.state.store import Store

MAX_OPEN_MAPS = 1024
"""Limit of mapped files. Linux allows a process 65,530 mappings; a set of 10^13 tokens has more
files than that."""

TokenRange = tuple[int, int]
"""[first, end) in the stream."""


class ShardRange(NamedTuple):
    """The part of a range of the stream that lies in one shard: its tokens [begin, end)."""

    shard: int
    begin: int
    end: int


class TokenStream(Protocol):
    """The tokens of a set. `read` is thread-safe."""

    def read(
        self, starts: Sequence[int], tokens: np.ndarray, mask: np.ndarray | None, stride: int
    ) -> None:
        """Fills row i of `tokens` (and of `mask`, which holds True) with the stream from starts[i]
        on. The order mixes blocks of `stride` tokens: a block's tokens are read close together."""
        ...

    def prefetch(self, windows: Sequence[Sequence[TokenRange]], stride: int) -> None:
        """Announces the ranges needed soon, in this order, instead of those announced before.
        Returns at once."""
        ...

    def extend(self, index: ShardIndex) -> None:
        """Continues with an index of the same shards and those that follow them."""
        ...

    def close(self) -> None: ...


class ShardIndex:
    """Maps positions in the stream to shards."""

    def __init__(self, manifest: SetManifest) -> None:
        self.shards = manifest.shards
        self.token_bytes = manifest.token_bytes
        self.num_tokens = manifest.num_tokens
        self.has_mask = any(shard.has_mask for shard in manifest.shards)
        self._ends = np.cumsum([shard.num_tokens for shard in manifest.shards], dtype=np.int64)

    def first_token(self, shard: int) -> int:
        return int(self._ends[shard]) - self.shards[shard].num_tokens

    def ranges(self, begin: int, end: int) -> Iterator[ShardRange]:
        """The tokens [begin, end), shard by shard."""
        shard = int(np.searchsorted(self._ends, begin, side="right"))
        while begin < end:
            first, over = self.first_token(shard), min(end, int(self._ends[shard]))
            yield ShardRange(shard, begin - first, over - first)
            begin, shard = over, shard + 1


def max_open_maps() -> int:
    """Limit of mapped files: each holds a file descriptor; sockets and logs need some too."""
    return min(MAX_OPEN_MAPS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


class MappedStream:
    """Shards on this machine, mapped when first needed."""

    def __init__(self, store: Store, index: ShardIndex, max_maps: int | None = None) -> None:
        self._store = store
        self._index = index
        self._max_maps = max_maps or max_open_maps()
        self._maps: OrderedDict[tuple[int, Part], np.ndarray] = OrderedDict()
        self._lock = Lock()

    def read(
        self, starts: Sequence[int], tokens: np.ndarray, mask: np.ndarray | None, stride: int
    ) -> None:
        for row, start in enumerate(starts):
            filled = 0
            for shard, begin, end in self._index.ranges(start, start + tokens.shape[1]):
                here = slice(filled, filled + end - begin)
                tokens[row, here] = self._map(shard, "tokens")[begin:end]
                if mask is not None and self._index.shards[shard].has_mask:
                    mask[row, here] = self._map(shard, "mask")[begin:end] != 0
                filled += end - begin

    def prefetch(self, windows: Sequence[Sequence[TokenRange]], stride: int) -> None:
        pass  # the kernel reads ahead

    def extend(self, index: ShardIndex) -> None:
        self._index = index

    def close(self) -> None:
        with self._lock:
            self._maps.clear()

    def _map(self, shard: int, part: Part) -> np.ndarray:
        with self._lock:
            found = self._maps.get((shard, part))
            if found is None:
                path = self._store.path(shard_file(self._index.shards[shard].name, part))
                dtype = f"<u{self._index.token_bytes}" if part == "tokens" else "u1"
                found = self._maps[shard, part] = np.memmap(path, dtype, mode="r")
                if len(self._maps) > self._max_maps:
                    self._maps.popitem(last=False)
            self._maps.move_to_end((shard, part))
            return found
