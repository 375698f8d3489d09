"""The stream of a set in an object store, read in blocks that are cached and fetched ahead.

    stream   | block 0         | block 1         | block 2         | ...      as the order has them
    shards   00000.tokens             00001.tokens          00002.tokens      of any length

A block is the unit that the order mixes, so a mixing window needs only its own blocks; plus one
token, since neighbouring samples share one. The tokens come with their loss mask, if the shards
have one. A block rarely crosses shards: usually it takes one request, or two with a mask.

Reading requests blocks and waits; a few threads fetch them, first those that are waited for, then
those of the next windows. The processes of a machine start at different places in a window, and
find on disk what the others have fetched.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np

from headway.clock import Clock
from headway.data.reading.block_cache import BlockCache
from headway.data.reading.fetcher import Fetcher
from headway.data.reading.token_stream import ShardIndex, TokenRange, max_open_maps
from headway.data.retry import READ_SECONDS, with_retries
from headway.data.set_format import shard_file
from headway.data.shard_table import Part
from headway.errors import BadInput
from headway.state.store import Store

MEMORY_BYTES = 2**29
"""Memory for blocks that cannot be stored on disk: more than a mixing window takes."""
OVERLAP_TOKENS = 1
DISK_RETRY_SECONDS = 60.0
"""How long a full disk is left alone: others need the little space that remains."""
GOLDEN = 0.6180339887498949
"""Multiples of it, modulo 1, are evenly spread however many there are: where each rank starts."""
INTACT = "prepare the set again, or fetch an intact copy"


class Block(NamedTuple):
    """The tokens of the stream that start at number * stride. The last block of a set that is still
    being prepared has fewer tokens than it gets later: that is another block."""

    stride: int
    number: int
    num_tokens: int

    @property
    def range(self) -> TokenRange:
        begin = self.number * self.stride
        return begin, begin + self.num_tokens


class BlockContent(NamedTuple):
    tokens: np.ndarray
    mask: np.ndarray | None
    """Loss mask; None if all tokens count."""

    @property
    def num_bytes(self) -> int:
        return self.tokens.nbytes + (0 if self.mask is None else self.mask.nbytes)


class BlockStream:
    """Reads the stream in blocks. `name` is the set's folder in the cache: its digest."""

    def __init__(
        self,
        store: Store,
        index: ShardIndex,
        name: str,
        cache: BlockCache,
        clock: Clock,
        warn: Callable[[str], None],
        *,
        rank: int = 0,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._store = store
        self._index = index
        self._name = name
        self._cache = cache
        self._clock = clock
        self._warn = warn
        self._has_warned = False
        self._disk_rests_until = clock.monotonic()
        self._place = rank * GOLDEN % 1.0
        self._memory = BlockMemory(max_open_maps(), memory_bytes)
        self._fetcher: Fetcher[Block] = Fetcher(self._fetch_block, clock)

    def read(
        self, starts: Sequence[int], tokens: np.ndarray, mask: np.ndarray | None, stride: int
    ) -> None:
        width = tokens.shape[1]
        self._fetch_all(
            block for start in starts for block in self._blocks((start, start + width), stride)
        )
        # In stream order, so that each block is visited once even if few can be held at a time.
        held: tuple[int, BlockContent] | None = None
        for row in np.argsort(np.array(starts), kind="stable").tolist():
            filled = 0
            while filled < width:
                number, offset = divmod(starts[row] + filled, stride)
                if held is None or held[0] != number:
                    held = (number, self._content(self._block(stride, number)))
                piece = held[1].tokens[offset : offset + width - filled]
                here = slice(filled, filled + len(piece))
                tokens[row, here] = piece
                if mask is not None and held[1].mask is not None:
                    mask[row, here] = held[1].mask[offset : offset + len(piece)] != 0
                filled += len(piece)

    def prefetch(self, windows: Sequence[Sequence[TokenRange]], stride: int) -> None:
        needed = [
            block
            for window in windows
            for block in self._rotated(
                dict.fromkeys(block for tokens in window for block in self._blocks(tokens, stride))
            )
        ]
        self._memory.need_only(needed)
        try:
            self._cache.protect([self._file(block) for block in needed])
        except OSError as error:
            self._disk_failed(str(error))
        self._fetcher.prefetch(needed)

    def extend(self, index: ShardIndex) -> None:
        self._index = index

    def close(self) -> None:
        self._fetcher.close()
        self._memory.need_only([])
        self._cache.close()

    # --- blocks

    def _blocks(self, tokens: TokenRange, stride: int) -> Iterator[Block]:
        """The blocks that hold the tokens [begin, end). If only the last token is in the next
        block, that block is not needed: the one before it includes that token."""
        begin, end = tokens
        last = max(begin, end - 1 - OVERLAP_TOKENS)
        return (
            self._block(stride, number) for number in range(begin // stride, last // stride + 1)
        )

    def _block(self, stride: int, number: int) -> Block:
        rest = self._index.num_tokens - number * stride
        return Block(stride, number, min(stride + OVERLAP_TOKENS, rest))

    def _has_mask(self, block: Block) -> bool:
        if not self._index.has_mask:
            return False
        ranges = self._index.ranges(*block.range)
        return any(self._index.shards[part.shard].has_mask for part in ranges)

    def _num_bytes(self, block: Block) -> int:
        token_bytes = self._index.token_bytes + (1 if self._has_mask(block) else 0)
        return block.num_tokens * token_bytes

    def _file(self, block: Block) -> str:
        return f"{self._name}/{block.stride}.{block.number}"

    def _parts(self, block: Block, content: np.ndarray) -> BlockContent:
        """Splits a block into its tokens, which come first, and their mask."""
        end = block.num_tokens * self._index.token_bytes
        tokens = content[:end].view(f"<u{self._index.token_bytes}")
        return BlockContent(tokens, content[end:] if self._has_mask(block) else None)

    # --- fetching

    def _fetch_all(self, blocks: Iterable[Block]) -> None:
        """Returns when the blocks are on this machine, as far as there is room."""
        wanted = dict.fromkeys(blocks)

        def one_round() -> None:
            missing = [block for block in wanted if not self._is_here(block)]
            self._fetcher.wait_for(self._rotated(missing))

        with_retries(self._store, "", one_round, self._clock, READ_SECONDS, self._fetcher.is_closed)

    def _content(self, block: Block) -> BlockContent:
        while True:
            found = self._memory.get(block)
            if found is not None:
                return found
            stored = self._cache.find(self._file(block), self._num_bytes(block))
            if stored is not None:
                return self._memory.map(block, self._parts(block, stored))
            self._fetch_all([block])

    def _is_here(self, block: Block) -> bool:
        if self._memory.get(block) is not None:
            return True
        return self._cache.has(self._file(block), self._num_bytes(block))

    def _rotated(self, blocks: Iterable[Block]) -> list[Block]:
        row = list(blocks)
        first = int(len(row) * self._place)
        return row[first:] + row[:first]

    def _fetch_block(self, block: Block, is_prefetch: bool) -> bool:
        """Fetches a block into the cache; returns whether there was room. OSError when the store
        does not answer."""
        if self._is_here(block):
            return True  # another process has fetched it in the meantime
        ranges = list(self._index.ranges(*block.range))
        content = b"".join(self._read_part(*part, "tokens") for part in ranges)
        if self._has_mask(block):
            content += b"".join(self._read_part(*part, "mask") for part in ranges)
        if self._kept_on_disk(block, content):
            return True
        parts = self._parts(block, np.frombuffer(content, np.uint8))
        return self._memory.keep(block, parts, is_prefetch)

    def _read_part(self, shard: int, begin: int, end: int, part: Part) -> bytes:
        if part == "mask" and not self._index.shards[shard].has_mask:
            return b"\x01" * (end - begin)
        item_bytes = self._index.token_bytes if part == "tokens" else 1
        name = shard_file(self._index.shards[shard].name, part)
        begin, end = begin * item_bytes, end * item_bytes
        try:
            content = self._store.read_range(name, begin, end - begin)
        except FileNotFoundError:
            raise BadInput(f"{self._store.location(name)} is missing", INTACT) from None
        if len(content) != end - begin:
            raise BadInput(
                f"{self._store.location(name)} ends before byte {end}: it is shorter than the "
                "manifest says",
                INTACT,
            )
        return content

    def _kept_on_disk(self, block: Block, content: bytes) -> bool:
        if self._clock.monotonic() < self._disk_rests_until:
            return False
        try:
            if self._cache.put(self._file(block), content):
                return True
            why = (
                f"blocks in use fill the cache of {self._cache.bound_bytes} bytes, or the disk; "
                "HEADWAY_CACHE_BYTES sets the size of the cache"
            )
        except OSError as error:
            self._disk_rests_until = self._clock.monotonic() + DISK_RETRY_SECONDS
            why = f"{error}; free disk space, or set HEADWAY_CACHE to another folder"
        self._disk_failed(why)
        return False

    def _disk_failed(self, why: str) -> None:
        """Warns once: training continues, with more requests."""
        if not self._has_warned:
            self._has_warned = True
            self._warn(
                f"blocks of {self._store.location()} are kept in memory, not in "
                f"{self._cache.folder}: {why}"
            )


class BlockMemory:
    """Blocks of this process: limited in number if mapped from disk, in bytes if in memory."""

    def __init__(self, max_maps: int, max_bytes: int) -> None:
        self._max_maps = max_maps
        self._max_bytes = max_bytes
        self._maps: OrderedDict[Block, BlockContent] = OrderedDict()
        self._kept: OrderedDict[Block, BlockContent] = OrderedDict()
        self._needed: frozenset[Block] = frozenset()
        self._lock = Lock()

    def get(self, block: Block) -> BlockContent | None:
        with self._lock:
            for blocks in (self._maps, self._kept):
                if block in blocks:
                    blocks.move_to_end(block)
                    return blocks[block]
        return None

    def map(self, block: Block, content: BlockContent) -> BlockContent:
        with self._lock:
            self._maps[block] = content
            while len(self._maps) > self._max_maps:
                self._maps.popitem(last=False)
        return content

    def keep(self, block: Block, content: BlockContent, is_prefetch: bool) -> bool:
        """Keeps a block in memory. A prefetched block never evicts one that is needed: returns
        False then."""
        with self._lock:
            room = self._max_bytes - content.num_bytes
            for old in [old for old in self._kept if old not in self._needed]:
                if self._kept_bytes() > room:
                    del self._kept[old]
            if is_prefetch and self._kept_bytes() > room:
                return False
            while self._kept and self._kept_bytes() > room:
                self._kept.popitem(last=False)
            self._kept[block] = content
        return True

    def need_only(self, blocks: Iterable[Block]) -> None:
        """Drops all other blocks: a removed file takes up disk space until it is unmapped."""
        with self._lock:
            self._needed = frozenset(blocks)
            for held in (self._maps, self._kept):
                for block in [block for block in held if block not in self._needed]:
                    del held[block]

    def _kept_bytes(self) -> int:
        return sum(content.num_bytes for content in self._kept.values())
