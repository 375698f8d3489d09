"""Fetches tokens of sets in object stores ahead of reading, and keeps them on this machine.

One fetcher serves all members of a mixture: they share its threads, its memory and its part of the
cache on disk. What they announce is fetched in the order in which it will be read, as far as these
bounds go. Blocks are stored on disk, for all processes of the machine; rows only in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from threading import Lock
from typing import NamedTuple, Protocol

import numpy as np

from headway.clock import Clock
from headway.data.reading.block_cache import DIGEST_BYTES, BlockCache
from headway.data.reading.fetcher import Fetcher
from headway.data.reading.mapped_stream import max_open_maps

MEMORY_BYTES = 2**29
"""Memory for rows, and for blocks that the disk cannot hold: more than a mixing window takes."""
DISK_EIGHTHS = 7
"""Eighths of the cache that announced blocks take. The rest is left to those of evaluations."""
DISK_RETRY_SECONDS = 60.0
"""How long a full disk is left alone: others need the little space that remains."""


class Block(NamedTuple):
    """Tokens of a set's stream that are fetched together: a block of the order, or some rows. The
    last block of a set that is still being prepared has fewer tokens than it gets later: that is
    another block."""

    source: Source
    begin: int
    num_tokens: int
    file: str | None
    """Name of the block in the cache on disk; None for rows, which are kept in memory only."""

    @property
    def end(self) -> int:
        return self.begin + self.num_tokens


class BlockContent(NamedTuple):
    tokens: np.ndarray
    mask: np.ndarray | None
    """Loss mask; None if all tokens count."""

    @property
    def num_bytes(self) -> int:
        return self.tokens.nbytes + (0 if self.mask is None else self.mask.nbytes)


class Need(NamedTuple):
    """A block that will be read, and the position at which it is needed first."""

    position: int
    block: Block


class Source(Protocol):
    """The stream of one set in an object store."""

    @property
    def location(self) -> str: ...
    def num_bytes(self, block: Block) -> int: ...
    def download(self, block: Block) -> bytes: ...
    def parts(self, block: Block, content: np.ndarray) -> BlockContent: ...


class BlockFetcher:
    """Keeps what was fetched. Starts no thread, and creates nothing on disk, until it is used."""

    def __init__(
        self, cache: BlockCache, clock: Clock, warn: Callable[[str], None], memory_bytes: int
    ) -> None:
        self._cache = cache
        self._clock = clock
        self._warn = warn
        self._has_warned = False
        self._disk_rests_until = clock.monotonic()
        self._memory_bytes = memory_bytes
        self._memory = BlockMemory(max_open_maps(), memory_bytes)
        self.threads: Fetcher[Block] = Fetcher(self._fetch, clock)
        self._needs: dict[Hashable, Sequence[Need]] = {}
        self._announcing = Lock()

    def announce(self, needs: Mapping[Hashable, Sequence[Need]], position: int) -> None:
        """Replaces what these sets were announced to need; reading has reached `position`. Returns
        at once."""
        with self._announcing:
            self._needs.update(needs)
            wanted = self._within_bounds(position)
            self._memory.need_only(wanted)
            try:
                self._cache.protect([block.file for block in wanted if block.file is not None])
            except OSError as error:
                for block in wanted[:1]:
                    self._disk_failed(block.source, str(error))
            self.threads.prefetch(wanted)

    def has(self, block: Block) -> bool:
        if self._memory.get(block) is not None:
            return True
        return block.file is not None and self._cache.has(block.file, block.source.num_bytes(block))

    def find(self, block: Block) -> BlockContent | None:
        """The block, if it is on this machine."""
        found = self._memory.get(block)
        if found is None and block.file is not None:
            stored = self._cache.find(block.file, block.source.num_bytes(block))
            if stored is not None:
                return self._memory.map(block, block.source.parts(block, stored))
        return found

    def close(self) -> None:
        self.threads.close()
        self._memory.need_only([])
        self._cache.close()

    def _within_bounds(self, position: int) -> list[Block]:
        """The announced blocks in the order of need, as far as there is room. Those of the windows
        that are being read are needed all the time: they are never left out."""
        disk = self._cache.bound_bytes * DISK_EIGHTHS // 8
        memory = self._memory_bytes // 2
        wanted: dict[Block, None] = {}
        needs = (need for needs in self._needs.values() for need in needs)
        for needed_at, block in sorted(needs, key=lambda need: need.position):
            if block in wanted:
                continue
            if block.file is None:
                memory -= block.source.num_bytes(block)
                has_room = memory >= 0
            else:
                disk -= block.source.num_bytes(block) + DIGEST_BYTES
                has_room = disk >= 0 or needed_at <= position
            if has_room:
                wanted[block] = None
        return list(wanted)

    def _fetch(self, block: Block, is_prefetch: bool) -> bool:
        """Fetches a block; returns whether there was room. OSError when the store does not
        answer."""
        if self.has(block):
            return True  # another process has fetched it in the meantime
        content = block.source.download(block)
        if block.file is not None and self._is_kept_on_disk(block, block.file, content):
            return True
        parts = block.source.parts(block, np.frombuffer(content, np.uint8))
        return self._memory.keep(block, parts, is_prefetch)

    def _is_kept_on_disk(self, block: Block, file: str, content: bytes) -> bool:
        if self._clock.monotonic() < self._disk_rests_until:
            return False
        try:
            if self._cache.put(file, content):
                return True
            why = (
                f"blocks in use fill the cache of {self._cache.bound_bytes} bytes, or the disk; "
                "HEADWAY_CACHE_BYTES sets the size of the cache"
            )
        except OSError as error:
            self._disk_rests_until = self._clock.monotonic() + DISK_RETRY_SECONDS
            why = f"{error}; free disk space, or set HEADWAY_CACHE to another folder"
        self._disk_failed(block.source, why)
        return False

    def _disk_failed(self, source: Source, why: str) -> None:
        """Warns once: training continues, with more requests."""
        if not self._has_warned:
            self._has_warned = True
            self._warn(
                f"blocks of {source.location} are kept in memory, not in "
                f"{self._cache.folder}: {why}"
            )


class BlockMemory:
    """Blocks of this process: limited in number if mapped from disk, in bytes if in memory."""

    def __init__(self, max_maps: int, max_bytes: int) -> None:
        self._max_maps = max_maps
        self._max_bytes = max_bytes
        self._maps: OrderedDict[Block, BlockContent] = OrderedDict()
        self._kept: OrderedDict[Block, BlockContent] = OrderedDict()
        self._kept_bytes = 0
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
            if block in self._kept:
                self._drop(block)
            room = self._max_bytes - content.num_bytes
            if self._kept_bytes > room:
                for old in [old for old in self._kept if old not in self._needed]:
                    if self._kept_bytes > room:
                        self._drop(old)
            if is_prefetch and self._kept_bytes > room:
                return False
            while self._kept and self._kept_bytes > room:
                self._drop(next(iter(self._kept)))
            self._kept[block] = content
            self._kept_bytes += content.num_bytes
        return True

    def need_only(self, blocks: Iterable[Block]) -> None:
        """Drops all other blocks: a removed file takes up disk space until it is unmapped."""
        with self._lock:
            self._needed = frozenset(blocks)
            for block in [block for block in self._maps if block not in self._needed]:
                del self._maps[block]
            for block in [block for block in self._kept if block not in self._needed]:
                self._drop(block)

    def _drop(self, block: Block) -> None:
        self._kept_bytes -= self._kept.pop(block).num_bytes
