"""Reads a prepared set: any sample at any time, wherever the shards are."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from headway.clock import Clock, SystemClock
from headway.data.order import Order, Window
from headway.data.reading.block_cache import BlockCache, cache_bytes
from headway.data.reading.block_fetcher import MEMORY_BYTES, BlockFetcher, Need
from headway.data.reading.block_stream import BlockStream
from headway.data.reading.look_ahead import BatchShare, StepsAhead, rows_cost_less
from headway.data.reading.mapped_stream import MappedStream
from headway.data.reading.pages import INTACT
from headway.data.reading.table_file import open_table
from headway.data.reading.token_stream import ShardIndex, TokenRange, TokenStream
from headway.data.reading.tokenizer_folder import local_tokenizer
from headway.data.reading.verify import Damage, size_problems
from headway.data.retry import OPEN_SECONDS, READ_SECONDS, with_retries
from headway.data.set_format import Layout, SetManifest, SpecialIds, read_manifest, shard_file
from headway.data.shard_table import ShardTable
from headway.errors import BadInput
from headway.state.store import Store
from headway.state.user_cache import cache_root

CHANGED = "start a new run: this one has read other data"


@dataclass(frozen=True)
class TokenRows:
    tokens: np.ndarray
    """int64: (n, L + 1) for a stream, (n, L) for windows."""
    mask: np.ndarray | None
    """bool, the same shape, True where a token counts for the loss; None if all count."""


def _log(words: str) -> None:
    logging.getLogger("headway").warning(words)


@dataclass(frozen=True)
class ReadOptions:
    """How sets in object stores are read; sets on this machine need none of this."""

    rank: int = 0
    """Rank of this process among those that read the same set: each starts fetching elsewhere."""
    local_workers: int = 1
    """Number of processes on this machine that read the same set, and share its blocks."""
    trusted: bool = False
    """Whether the sizes of all files have been checked already, as `headway run` does before it
    starts workers. In a store, listing 100,000 shards takes a minute, and 5,000 workers would all
    do it at once; a missing or short file is noticed when it is read."""
    warn: Callable[[str], None] = _log
    """Called once if blocks cannot be stored on disk; from any thread."""
    clock: Clock = field(default_factory=SystemClock)
    cache: Path = field(default_factory=cache_root)
    cache_bytes: int = field(default_factory=cache_bytes)
    memory_bytes: int = MEMORY_BYTES
    fetcher: BlockFetcher | None = None
    """Fetches for all sets that are given it; None: each has its own."""

    def new_fetcher(self) -> BlockFetcher:
        cache = BlockCache(self.cache / "blocks", self.cache_bytes)
        return BlockFetcher(cache, self.clock, self.warn, self.memory_bytes)


class TokenSet:
    """A prepared set, open for reading; thread-safe."""

    is_growing = False

    def __init__(
        self,
        store: Store,
        manifest: SetManifest,
        table: ShardTable,
        reading: ReadOptions | None = None,
    ) -> None:
        self.location = store.root
        self.manifest = manifest
        self.table = table
        self.digest = manifest.digest
        self.layout: Layout = manifest.layout
        self.window_tokens = manifest.window_tokens
        self.vocab_size = manifest.vocab_size
        self.special_ids: SpecialIds = manifest.special_ids
        self.tokenizer_digest = manifest.tokenizer_digest
        self.in_sequence = manifest.in_sequence
        self._reading = reading or ReadOptions()
        self.store = store
        self._index = ShardIndex(manifest, table)
        self.fetcher: BlockFetcher | None = None
        self._far: BlockStream | None = None
        if not store.is_local:
            how = self._reading
            self.fetcher = how.fetcher or how.new_fetcher()
            self._far = BlockStream(
                store, self._index, self.digest, self.fetcher, how.clock, how.rank
            )
        self._stream: TokenStream = self._far or MappedStream(store, self._index)
        self._steps_ahead = StepsAhead()
        self._ahead: tuple[int, int, list[Window]] | None = None

    @property
    def num_tokens(self) -> int:
        return self.manifest.num_tokens

    @property
    def section_tokens(self) -> int:
        """Size of one mixing window, the unit of mixing in a set that is read in sequence."""
        return self.manifest.block_tokens * self.manifest.window_blocks

    @classmethod
    def open(cls, store: Store, reading: ReadOptions | None = None) -> TokenSet:
        """Opens a set after checking the manifest and every file's size; `verify` also reads their
        content. Nothing is cached or started until something is read."""
        reading = reading or ReadOptions()

        def sizes() -> list[Damage]:
            return [] if reading.trusted else size_problems(store, manifest, table)

        manifest = with_retries(
            store, "", lambda: read_manifest(store), reading.clock, OPEN_SECONDS
        )
        table = open_table(store, manifest, reading.cache, reading.clock)
        problems = manifest.problems(table)
        problems += [
            damage.message for damage in with_retries(store, "", sizes, reading.clock, OPEN_SECONDS)
        ]
        if problems:
            raise BadInput(problems[0], INTACT)
        return cls(store, manifest, table, reading)

    @cached_property
    def tokenizer_folder(self) -> Path:
        """The tokenizer's folder on this machine; fetched once from an object store."""
        return local_tokenizer(
            self.store, self.tokenizer_digest, self._reading.cache, self._reading.clock
        )

    def num_samples(self, sequence_length: int) -> int:
        """Number of samples in one epoch. Zero for a stream shorter than one sample."""
        assert sequence_length >= 1
        if self.layout == "stream":
            # Sample i is tokens [iL, iL + L]: neighbours share one token.
            return (self.manifest.num_tokens - 1) // sequence_length
        return self.manifest.num_tokens // self._checked_window(sequence_length)

    def tail_tokens(self, sequence_length: int) -> int:
        """Number of tokens at the end that are in no sample of this length."""
        num_samples = self.num_samples(sequence_length)
        used = num_samples * sequence_length
        if self.layout == "stream" and num_samples:
            used += 1
        return self.manifest.num_tokens - used

    def order(self, seed: int, sequence_length: int) -> Order:
        num_samples = self.num_samples(sequence_length)
        if num_samples == 0:
            raise BadInput(
                f"{self.location} has {self.manifest.num_tokens} tokens, "
                f"too few for one sample of sequence_length {sequence_length}",
                "use more text or a shorter sequence_length",
            )
        return Order(
            seed=seed,
            num_samples=num_samples,
            samples_per_block=self._samples_per_block(sequence_length),
            window_blocks=self.manifest.window_blocks,
            samples_per_section=(
                self.samples_per_section(sequence_length) if self.in_sequence else None
            ),
        )

    def samples_per_section(self, sequence_length: int) -> int:
        """Samples per section of a set in sequence: a section is one mixing window."""
        return self._samples_per_block(sequence_length) * self.manifest.window_blocks

    def wait_for(self, end: int, sequence_length: int, show: object = None) -> None:
        """Returns at once: every sample is there."""

    def read(self, samples: np.ndarray, sequence_length: int) -> TokenRows:
        num_samples = self.num_samples(sequence_length)
        assert samples.ndim == 1
        assert samples.size == 0 or (samples.min() >= 0 and samples.max() < num_samples)
        shape = (len(samples), self._width(sequence_length))
        tokens = np.empty(shape, dtype=np.int64)
        mask = np.ones(shape, dtype=np.bool_) if self._index.has_mask else None
        starts = (samples * sequence_length).tolist()
        self._stream.read(starts, tokens, mask, self._stride(sequence_length))
        return TokenRows(tokens, mask)

    def prefetch(
        self,
        seed: int,
        sequence_length: int,
        step: int,
        share: BatchShare,
        end: int | None = None,
    ) -> None:
        """Announces that reading has reached a step of its order, whose positions are known before
        `end`: what its worker needs next is fetched in the background. Cheap enough to call at
        every step."""
        if self.fetcher is None:
            return
        first = step * share.global_batch
        rows = self._steps_ahead.renewed((seed, sequence_length), step, share, end)
        batch = range(first, first + share.global_batch)
        needs = self.needs(seed, sequence_length, batch, rows, share.of_machine)
        if needs is not None:
            self.fetcher.announce({self: needs}, first)

    def needs(
        self,
        seed: int,
        sequence_length: int,
        batch: range,
        rows: np.ndarray | None,
        of_machine: float,
    ) -> list[Need] | None:
        """Lists what is read next: these rows, or whole blocks of the batch's mixing windows and
        the one after them, whichever costs less. All numbers are indices of the set's own order.
        None if what was announced before is enough, which holds for rows that are None."""
        if self._far is None:
            return None
        if self._reads_rows(sequence_length, of_machine):
            if rows is None:
                return None
            self._ahead = None
            _, samples = self.order(seed, sequence_length).draw(rows)
            starts, width = samples * sequence_length, self._width(sequence_length)
            return self._far.row_needs(starts, width, rows)
        if self._knows(seed, sequence_length, batch):
            return None
        order = self.order(seed, sequence_length)
        windows = [order.window_at(batch.start)]
        while windows[-1].end_position < batch.stop:
            windows.append(order.window_at(windows[-1].end_position))
        windows.append(order.window_at(windows[-1].end_position))
        self._ahead = (seed, sequence_length, windows)
        return [
            Need(window.first_position, block)
            for window in windows
            for block in self._far.blocks(
                self._token_ranges(window, sequence_length), self._stride(sequence_length)
            )
        ]

    def extend(self, manifest: SetManifest, table: ShardTable) -> None:
        """Adds the shards that were prepared since: reading continues with the same threads and the
        same blocks. `table` has the same shards at its beginning."""
        if not table.starts_with(self.table):
            raise BadInput(f"{self.location} has changed while it was read", CHANGED)
        self.table = table
        self._index = ShardIndex(manifest, table)
        self._stream.extend(self._index)
        # Last: other threads read the samples that it counts.
        self.manifest = manifest
        self._ahead = None  # its last window was mixed of fewer samples

    def document_starts(self, number: int) -> np.ndarray:
        """int64, ascending: where documents start in a shard, counted from its first token."""
        name = shard_file(self.table.name(number), "documents")
        content = with_retries(
            self.store,
            name,
            lambda: self.store.read(name),
            self._reading.clock,
            READ_SECONDS,
        )
        return np.frombuffer(content, dtype="<u8").astype(np.int64)

    def close(self) -> None:
        """Stops background work; readers that still wait for tokens get an error."""
        self._stream.close()

    def _knows(self, seed: int, sequence_length: int, batch: range) -> bool:
        """Whether the windows announced already cover these indices."""
        if self._ahead is None or self._ahead[:2] != (seed, sequence_length):
            return False
        windows = self._ahead[2]
        begun = windows[0].first_position <= batch.start < windows[0].end_position
        return begun and batch.stop <= windows[-1].first_position

    def _reads_rows(self, sequence_length: int, of_machine: float) -> bool:
        item_bytes = self._index.token_bytes + (1 if self._index.has_mask else 0)
        return rows_cost_less(
            self._samples_per_block(sequence_length) * of_machine,
            self._width(sequence_length) * item_bytes,
            self._stride(sequence_length) * item_bytes,
        )

    def _token_ranges(self, window: Window, sequence_length: int) -> list[TokenRange]:
        beyond = self._width(sequence_length) - sequence_length
        return [
            (first * sequence_length, end * sequence_length + beyond)
            for first, end in window.samples
        ]

    def _samples_per_block(self, sequence_length: int) -> int:
        return max(1, self.manifest.block_tokens // sequence_length)

    def _stride(self, sequence_length: int) -> int:
        """Number of tokens between the starts of two blocks of the order."""
        return self._samples_per_block(sequence_length) * sequence_length

    def _width(self, sequence_length: int) -> int:
        return sequence_length + (1 if self.layout == "stream" else 0)

    def _checked_window(self, sequence_length: int) -> int:
        window = self.window_tokens
        assert window is not None
        if sequence_length != window:
            raise BadInput(
                f"{self.location} was prepared in windows of {window} tokens, "
                f"but sequence_length is {sequence_length}",
                f"set sequence_length to {window}, or prepare the set again",
            )
        return window
