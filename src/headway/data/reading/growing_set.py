"""A set that is still being prepared: training starts on what is finished.

Such a set is read in sequence: in sections of one mixing window each, in the order of the sources,
with the samples of each section mixed among themselves. A full section does not depend on what
follows it, so the sample at a position never depends on how far the preparation had come when it
was requested, and neither does anything derived from it: at most, a reader has to wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from headway.data.order import Order
from headway.data.prepare.partial_manifest import PartialManifest
from headway.data.prepare.recipe import Recipe, read_recipe
from headway.data.reading.block_fetcher import BlockFetcher, Need
from headway.data.reading.look_ahead import BatchShare
from headway.data.reading.token_set import ReadOptions, TokenRows, TokenSet
from headway.data.reading.tokenizer_folder import local_tokenizer
from headway.data.retry import READ_SECONDS, with_retries
from headway.data.set_format import MANIFEST, Layout, SetManifest
from headway.data.shard_table import ShardTable
from headway.errors import RunFailed
from headway.state.set_files import FAILED
from headway.state.store import Store

STALL_SECONDS = 1800.0
"""Time without a new shard after which the preparation counts as dead."""
POLL_SECONDS, MOST_POLL_SECONDS = 0.5, 5.0
"""Pause between two looks at the store while somebody waits: the first, which doubles, and the
longest. A local folder is looked at every `POLL_SECONDS`."""
AHEAD_SECONDS = 5.0
"""The same for positions that nobody waits for yet: a run of many workers asks for them at every
step."""


Show = Callable[["GrowingSet"], None]
"""Is called at every look at a set that is waited for."""


class GrowingSet:
    """A set like any other, except that reads wait for samples that are not prepared yet."""

    def __init__(self, store: Store, recipe: Recipe, reading: ReadOptions) -> None:
        assert recipe.settings.in_sequence
        self.location = store.root
        self.in_sequence = True
        self.digest = recipe.digest
        self.layout: Layout = recipe.settings.layout
        self.window_tokens = recipe.settings.window_tokens
        self.vocab_size = recipe.tokens.vocab_size
        self.special_ids = recipe.tokens.special_ids
        self.tokenizer_digest = recipe.tokens.digest
        self._recipe = recipe
        self.fetcher: BlockFetcher | None = None
        if not store.is_local:
            self.fetcher = reading.fetcher or reading.new_fetcher()
        self._reading = replace(reading, fetcher=self.fetcher)
        self._store = store
        self._lock = threading.Lock()
        self._partial = PartialManifest(recipe, "shards")
        self._known: TokenSet | None = None
        self._is_finished = False
        self._is_closed = False
        self._looked: float | None = None

    @classmethod
    def open(cls, store: Store, reading: ReadOptions | None = None) -> GrowingSet | None:
        """Opens the set; None if no set in sequence is being prepared there."""
        recipe = read_recipe(store)
        if recipe is None or not recipe.settings.in_sequence:
            return None
        return cls(store, recipe, reading or ReadOptions())

    @property
    def is_growing(self) -> bool:
        """Whether it was still being prepared at the last look."""
        return not self._is_finished

    @cached_property
    def tokenizer_folder(self) -> Path:
        return local_tokenizer(
            self._store, self.tokenizer_digest, self._reading.cache, self._reading.clock
        )

    @property
    def progress(self) -> tuple[int, int]:
        """Number of finished units, and total number of units."""
        self._look()
        num_units = len(self._partial.units)
        return num_units if self._is_finished else self._partial.sums.next[0], num_units

    @property
    def num_tokens(self) -> int:
        """Tokens prepared so far."""
        if self._is_finished and self._known is not None:
            return self._known.manifest.num_tokens
        return self._partial.sums.num_tokens

    @property
    def section_tokens(self) -> int:
        return self._recipe.settings.block_tokens * self._recipe.settings.window_blocks

    def num_samples(self, sequence_length: int) -> int:
        """Number of samples that can be read now."""
        self._look()
        return self._num_known(sequence_length)

    def _num_known(self, sequence_length: int) -> int:
        """The same, as of the last look."""
        if self._known is None:
            return 0
        found = self._known.num_samples(sequence_length)
        section = self._known.samples_per_section(sequence_length)
        return found if self._is_finished else found // section * section

    def tail_tokens(self, sequence_length: int) -> int:
        known = self._look()
        return known.tail_tokens(sequence_length) if known and self._is_finished else 0

    def order(self, seed: int, sequence_length: int) -> GrowingOrder:
        return GrowingOrder(self, seed, sequence_length)

    def wait_for(self, end: int, sequence_length: int, show: Show = lambda growing: None) -> None:
        """Returns when the positions before `end` can be read, or the set is finished. Looks at the
        store only if they are not known to be there."""
        clock, pause = self._reading.clock, POLL_SECONDS
        last, since = self._partial.sums.next, clock.monotonic()
        while self._num_known(sequence_length) < end and not self._is_finished:
            if self.num_samples(sequence_length) >= end or self._is_finished:
                return
            if self._is_closed:
                raise RunFailed(f"{self.location} was closed")
            if self._partial.sums.next != last:
                last, since = self._partial.sums.next, clock.monotonic()
            if self._store.size(FAILED) is not None:
                raise RunFailed(
                    f"preparing {self.location} failed: {self._store.read(FAILED).decode()}",
                    "fix the problem, then run the same command to resume",
                )
            if clock.monotonic() - since > STALL_SECONDS:
                raise RunFailed(
                    f"{self.location}: no new shard for {STALL_SECONDS / 60:.0f} minutes",
                    f"is it still being prepared? headway data show {self.location}",
                )
            show(self)
            clock.sleep(pause)
            if not self._store.is_local:
                pause = min(2 * pause, MOST_POLL_SECONDS)

    def read(self, samples: np.ndarray, sequence_length: int) -> TokenRows:
        return self.known.read(samples, sequence_length)

    def prefetch(self, seed: int, sequence_length: int, step: int, share: BatchShare) -> None:
        end = (step + 1) * share.global_batch
        until = self.known_until(end, sequence_length)
        if until is None or end <= until:
            self.known.prefetch(seed, sequence_length, step, share, until)

    def needs(
        self,
        seed: int,
        sequence_length: int,
        batch: range,
        rows: np.ndarray | None,
        of_machine: float,
    ) -> list[Need] | None:
        """Lists what is read next, as a `TokenSet` does. None while not all of the batch is
        prepared, as the rows are then."""
        known = self._num_known(sequence_length)
        if not self._is_finished and (batch.start >= known or batch.stop > known):
            return None
        return self.known.needs(seed, sequence_length, batch, rows, of_machine)

    def known_until(self, end: int, sequence_length: int) -> int | None:
        """The first position that may not be prepared yet; None if all are. Looks at the store, now
        and then, if it is before `end`."""
        if self._num_known(sequence_length) < end:
            looked, now = self._looked, self._reading.clock.monotonic()
            if looked is None or now - looked >= AHEAD_SECONDS:
                self._look()
        return None if self._is_finished else self._num_known(sequence_length)

    def close(self) -> None:
        self._is_closed = True
        if self._known is not None:
            self._known.close()

    def _look(self) -> TokenSet | None:
        """The finished part of the set, refreshed."""
        with self._lock:
            if not self._is_finished:
                self._looked = self._reading.clock.monotonic()
                with_retries(self._store, "", self._look_again, self._reading.clock, READ_SECONDS)
            return self._known

    def _look_again(self) -> None:
        if self._store.size(MANIFEST) is not None:
            finished = TokenSet.open(self._store, self._reading)
            self._extend(finished.manifest, finished.table)
            self._is_finished = True
            return
        known = 0 if self._known is None else len(self._known.table)
        self._partial.refresh(self._store)
        if self._partial.sums.num_shards > known:
            table = self._partial.table
            self._extend(self._partial.set_manifest(table), table)

    def _extend(self, manifest: SetManifest, table: ShardTable) -> None:
        """One set for all shards that come: each has threads, a lease in the cache and mapped
        blocks."""
        if self._known is None:
            self._known = TokenSet(self._store, manifest, table, self._reading)
        else:
            self._known.extend(manifest, table)

    @property
    def known(self) -> TokenSet:
        """The finished part of the set, as of the last refresh."""
        assert self._known is not None, "positions are given out only when they are there"
        return self._known


def open_one(store: Store, reading: ReadOptions | None = None) -> GrowingSet | TokenSet:
    """Opens one set, which may still be being prepared if it is in sequence."""
    if store.size(MANIFEST) is None and (growing := GrowingSet.open(store, reading)):
        return growing
    return TokenSet.open(store, reading)


@dataclass(frozen=True)
class GrowingOrder:
    """The order of a set in sequence, as far as the set is prepared."""

    set: GrowingSet
    seed: int
    sequence_length: int

    def at(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        return self._until(first + count).at(first, count)

    def _until(self, end: int) -> Order:
        self.set.wait_for(end, self.sequence_length)
        return self.set.known.order(self.seed, self.sequence_length)
