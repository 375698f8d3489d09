"""A set's tokens as one stream across its shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from headway.data.set_format import SetManifest
from headway.data.shard_table import ShardTable

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

    def extend(self, index: ShardIndex) -> None:
        """Continues with an index of the same shards and those that follow them."""
        ...

    def close(self) -> None: ...


class ShardIndex:
    """Maps positions in the stream to shards."""

    def __init__(self, manifest: SetManifest, table: ShardTable) -> None:
        self.table = table
        self.token_bytes = manifest.token_bytes
        self.vocab_size = manifest.vocab_size
        self.may_exceed_vocabulary = manifest.vocab_size < 256**self.token_bytes
        self.num_tokens = table.num_tokens
        self.has_mask = bool(table.has_mask.any())
        self.has_pages = manifest.version >= 3

    def num_tokens_of(self, shard: int) -> int:
        return int(self.table.token_ends[shard]) - self.table.first_token(shard)

    def ranges(self, begin: int, end: int) -> Iterator[ShardRange]:
        """The tokens [begin, end), shard by shard."""
        ends = self.table.token_ends
        shard = int(np.searchsorted(ends, begin, side="right"))
        while begin < end:
            first, over = self.table.first_token(shard), min(end, int(ends[shard]))
            yield ShardRange(shard, begin - first, over - first)
            begin, shard = over, shard + 1
