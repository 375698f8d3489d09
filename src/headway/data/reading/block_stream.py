"""The stream of a set in an object store, read in blocks or rows that are fetched ahead.

    stream   | block 0         | block 1         | block 2         | ...      as the order has them
    shards   00000.tokens             00001.tokens          00002.tokens      of any length

A block is the unit that the order mixes, so a mixing window needs only its own blocks; plus one
token, since neighbouring samples share one. The tokens come with their loss mask, if the shards
have one. A block rarely crosses shards: usually it takes one request, or two with a mask.

A machine that reads a small part of each block fetches only the rows of its workers
(`look_ahead.py` decides that, `block_fetcher.py` fetches). Where whole blocks are fetched, the
processes of a machine start at different places in a window, and find on disk what the others have
fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from headway.clock import Clock
from headway.data.reading.block_fetcher import Block, BlockContent, BlockFetcher, Need
from headway.data.reading.look_ahead import REQUEST_BYTES
from headway.data.reading.pages import Pages, ShardReader
from headway.data.reading.token_stream import ShardIndex, TokenRange
from headway.data.retry import READ_SECONDS, with_retries
from headway.state.store import Store

OVERLAP_TOKENS = 1
GOLDEN = 0.6180339887498949
"""Multiples of it, modulo 1, are evenly spread however many there are: where each rank starts."""


class BlockStream:
    """Reads the stream in blocks. `name` is the set's folder in the cache: its digest."""

    def __init__(
        self,
        store: Store,
        index: ShardIndex,
        name: str,
        fetcher: BlockFetcher,
        clock: Clock,
        rank: int = 0,
    ) -> None:
        self._store = store
        self._index = index
        self._name = name
        self._fetcher = fetcher
        self._pages = Pages(store, index)
        self._shards = ShardReader(store, self._pages)
        self._clock = clock
        self._place = rank * GOLDEN % 1.0
        self._rows: dict[int, Block] | None = None
        """Maps the first token of a row to the block to fetch; None while whole blocks are read."""

    @property
    def location(self) -> str:
        return self._store.location()

    def read(
        self, starts: Sequence[int], tokens: np.ndarray, mask: np.ndarray | None, stride: int
    ) -> None:
        width, rows = tokens.shape[1], self._rows
        if rows is None:
            self._fetch_all(self._blocks([(start, start + width) for start in starts], stride))
        else:
            rows = {start: self._row(rows, start, width) for start in starts}
            self._fetch_all(rows.values())
        # In stream order, so that each block is visited once even if few can be held at a time.
        held: tuple[Block, BlockContent] | None = None
        for row in np.argsort(np.array(starts), kind="stable").tolist():
            filled = 0
            while filled < width:
                at = starts[row] + filled
                if held is None or not held[0].begin <= at < held[0].end:
                    block = self._block(stride, at // stride) if rows is None else rows[starts[row]]
                    held = (block, self._content(block))
                offset = at - held[0].begin
                piece = held[1].tokens[offset : offset + width - filled]
                here = slice(filled, filled + len(piece))
                tokens[row, here] = piece
                if mask is not None and held[1].mask is not None:
                    mask[row, here] = held[1].mask[offset : offset + len(piece)] != 0
                filled += len(piece)

    def row_needs(self, starts: np.ndarray, width: int, positions: np.ndarray) -> list[Need]:
        """Lists what to fetch for these rows, which are read at these positions; from here on only
        rows are read. Rows near each other share a request; those announced before keep theirs."""
        before = self._rows or {}
        rows = {start: before[start] for start in starts.tolist() if start in before}
        new = np.setdiff1d(starts, np.fromiter(rows, np.int64, len(rows)))
        apart = width + REQUEST_BYTES // self._index.token_bytes
        for near in np.split(new, np.flatnonzero(np.diff(new) > apart) + 1) if len(new) else ():
            block = Block(self, int(near[0]), int(near[-1] - near[0]) + width, None)
            rows.update(dict.fromkeys(near.tolist(), block))
        self._rows = rows
        pairs = zip(positions.tolist(), starts.tolist(), strict=True)
        return [Need(position, rows[start]) for position, start in pairs]

    def blocks(self, window: Sequence[TokenRange], stride: int) -> list[Block]:
        """The blocks that hold these ranges; from here on whole blocks are read."""
        self._rows = None
        return self._rotated(self._blocks(window, stride))

    def extend(self, index: ShardIndex) -> None:
        self._index = self._pages.index = index

    def close(self) -> None:
        self._fetcher.close()

    # --- blocks

    def num_bytes(self, block: Block) -> int:
        token_bytes = self._index.token_bytes + (1 if self._has_mask(block) else 0)
        return block.num_tokens * token_bytes

    def download(self, block: Block) -> bytes:
        ranges = list(self._index.ranges(block.begin, block.end))
        content = b"".join(self._shards.read(*part, "tokens") for part in ranges)
        if self._has_mask(block):
            content += b"".join(self._shards.read(*part, "mask") for part in ranges)
        return content

    def parts(self, block: Block, content: np.ndarray) -> BlockContent:
        """Splits a block into its tokens, which come first, and their mask."""
        end = block.num_tokens * self._index.token_bytes
        tokens = content[:end].view(f"<u{self._index.token_bytes}")
        return BlockContent(tokens, content[end:] if self._has_mask(block) else None)

    def _blocks(self, ranges: Iterable[TokenRange], stride: int) -> list[Block]:
        """The blocks that hold these ranges. If only the last token of one is in the next block,
        that block is not needed: the one before it includes that token."""
        numbers = dict.fromkeys(
            number
            for begin, end in ranges
            for number in range(begin // stride, max(begin, end - 1 - OVERLAP_TOKENS) // stride + 1)
        )
        return [self._block(stride, number) for number in numbers]

    def _block(self, stride: int, number: int) -> Block:
        begin = number * stride
        num_tokens = min(stride + OVERLAP_TOKENS, self._index.num_tokens - begin)
        return Block(self, begin, num_tokens, f"{self._name}/{stride}.{number}")

    def _row(self, rows: dict[int, Block], start: int, width: int) -> Block:
        found = rows.get(start)
        if found is None or found.end < start + width:
            return Block(self, start, width, None)
        return found

    def _has_mask(self, block: Block) -> bool:
        if not self._index.has_mask:
            return False
        ranges = self._index.ranges(block.begin, block.end)
        return any(self._index.table.has_mask[part.shard] for part in ranges)

    # --- fetching

    def _fetch_all(self, blocks: Iterable[Block]) -> None:
        """Returns when the blocks are on this machine, as far as there is room."""
        wanted = dict.fromkeys(blocks)

        def one_round() -> None:
            missing = [block for block in wanted if not self._fetcher.has(block)]
            self._fetcher.threads.wait_for(self._rotated(missing))

        is_closed = self._fetcher.threads.is_closed
        with_retries(self._store, "", one_round, self._clock, READ_SECONDS, is_closed)

    def _content(self, block: Block) -> BlockContent:
        while (found := self._fetcher.find(block)) is None:
            self._fetch_all([block])
        return found

    def _rotated(self, blocks: Iterable[Block]) -> list[Block]:
        row = list(blocks)
        first = int(len(row) * self._place)
        return row[first:] + row[:first]
