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
from headway.data.reading.block_stream import INTACT, MEMORY_BYTES, BlockStream
from headway.data.reading.token_stream import MappedStream, ShardIndex, TokenRange, TokenStream
from headway.data.reading.tokenizer_folder import local_tokenizer
from headway.data.reading.verify import size_problems
from headway.data.retry import OPEN_SECONDS, READ_SECONDS, with_retries
from headway.data.set_format import Layout, SetManifest, SpecialIds, read_manifest, shard_file
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
    trusted: bool = False
    """Whether the sizes of all files have been checked already, as `headway run` does before it
    starts workers. Listing 100,000 shards takes a minute, and 5,000 workers would all do it at
    once; a missing or short file is noticed when it is read."""
    warn: Callable[[str], None] = _log
    """Called once if blocks cannot be stored on disk; from any thread."""
    clock: Clock = field(default_factory=SystemClock)
    cache: Path = field(default_factory=cache_root)
    cache_bytes: int = field(default_factory=cache_bytes)
    memory_bytes: int = MEMORY_BYTES


class TokenSet:
    """A prepared set, open for reading; thread-safe."""

    is_growing = False

    def __init__(
        self, store: Store, manifest: SetManifest, reading: ReadOptions | None = None
    ) -> None:
        self.location = store.root
        self.manifest = manifest
        self.digest = manifest.digest
        self.layout: Layout = manifest.layout
        self.window_tokens = manifest.window_tokens
        self.vocab_size = manifest.vocab_size
        self.special_ids: SpecialIds = manifest.special_ids
        self.tokenizer_digest = manifest.tokenizer_digest
        self.in_sequence = manifest.in_sequence
        self._reading = reading or ReadOptions()
        self.store = store
        self._index = ShardIndex(manifest)
        self._stream = _stream(self.store, self._index, self.digest, self._reading)
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

        def look() -> tuple[SetManifest, list[str]]:
            manifest = read_manifest(store)
            trusted = reading.trusted and not store.is_local
            sizes = [] if trusted else size_problems(store, manifest)
            return manifest, [*manifest.problems(), *(damage.message for damage in sizes)]

        manifest, problems = with_retries(store, "", look, reading.clock, OPEN_SECONDS)
        if problems:
            raise BadInput(problems[0], INTACT)
        return cls(store, manifest, reading)

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

    def prefetch(self, seed: int, sequence_length: int, first: int, count: int) -> None:
        """Announces that reading has reached the positions first .. first + count - 1 of its order:
        what they and the next window need is fetched in the background. Cheap enough to call at
        every step."""
        if self.store.is_local or self._knows(seed, sequence_length, first, count):
            return
        order = self.order(seed, sequence_length)
        windows = [order.window_at(first)]
        while windows[-1].end_position < first + count:
            windows.append(order.window_at(windows[-1].end_position))
        windows.append(order.window_at(windows[-1].end_position))
        self._ahead = (seed, sequence_length, windows)
        self._stream.prefetch(
            [self._token_ranges(window, sequence_length) for window in windows],
            self._stride(sequence_length),
        )

    def extend(self, manifest: SetManifest) -> None:
        """Adds the shards that were prepared since: reading continues with the same threads and the
        same blocks. `manifest` has the same shards at its beginning."""
        if manifest.shards[: len(self.manifest.shards)] != self.manifest.shards:
            raise BadInput(f"{self.location} has changed while it was read", CHANGED)
        self._index = ShardIndex(manifest)
        self._stream.extend(self._index)
        # Last: other threads read the samples that it counts.
        self.manifest = manifest
        self._ahead = None  # its last window was mixed of fewer samples

    def document_starts(self, number: int) -> np.ndarray:
        """int64, ascending: where documents start in a shard, counted from its first token."""
        name = shard_file(self.manifest.shards[number].name, "documents")
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

    def _knows(self, seed: int, sequence_length: int, first: int, count: int) -> bool:
        """Whether the current prefetch already covers these positions."""
        if self._ahead is None or self._ahead[:2] != (seed, sequence_length):
            return False
        windows = self._ahead[2]
        begun = windows[0].first_position <= first < windows[0].end_position
        return begun and first + count <= windows[-1].first_position

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


def _stream(store: Store, index: ShardIndex, digest: str, reading: ReadOptions) -> TokenStream:
    if store.is_local:
        return MappedStream(store, index)
    return BlockStream(
        store,
        index,
        digest,
        BlockCache(reading.cache / "blocks", reading.cache_bytes),
        reading.clock,
        reading.warn,
        rank=reading.rank,
        memory_bytes=reading.memory_bytes,
    )
