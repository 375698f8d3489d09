"""A worker fetches only its rows where its machine needs few of each block, else whole blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.data.mixture_shares import NUM_SLOTS
from headway.data.reading.fetcher import NUM_THREADS
from headway.data.reading.look_ahead import AHEAD_STEPS, BatchShare, StepsAhead, rows_cost_less
from headway.data.reading.mixture import MixtureManifest, MixtureMember, MixtureSet
from headway.data.reading.token_set import ReadOptions, TokenSet
from headway.state.store import Store
from support.virtual_set import (
    SHARD_TOKENS,
    VirtualStore,
    expected_rows,
    virtual_manifest,
    virtual_set,
    virtual_table,
)
from support.waiting import wait_for

LENGTH, BATCH, SEED, STEPS = 4096, 1024, 3, 100
ROW_BYTES = 4 * (LENGTH + 1)
MIB = 2**20


@contextmanager
def opened(cache: Path, **how: Any) -> Iterator[tuple[TokenSet, VirtualStore]]:
    tokens, store = virtual_set("set", ReadOptions(cache=cache), **how)
    yield tokens, store
    tokens.close()


def read_steps(samples: Any, steps: range, share: BatchShare) -> np.ndarray:
    """What a worker does: all samples that it read."""
    order, read = samples.order(SEED, LENGTH), []
    for step in steps:
        samples.prefetch(SEED, LENGTH, step, share)
        own = order.at(step * share.global_batch + share.first, share.count)[1]
        assert samples.read(own, LENGTH).tokens.shape == (share.count, LENGTH + 1)
        read.append(own)
    return np.concatenate(read)


@pytest.mark.parametrize(("workers", "on_machine"), [(512, 1), (512, 8), (64, 8)])
def test_a_worker_fetches_little_more_than_its_rows(
    tmp_path: Path, workers: int, on_machine: int
) -> None:
    count = BATCH // workers
    share = BatchShare(BATCH, 3 * count, count, on_machine / workers)
    with opened(tmp_path) as (tokens, store):
        read_steps(tokens, range(STEPS), share)
        needed = STEPS * count
        assert store.num_bytes <= 2 * needed * ROW_BYTES
        # One for a row, one for the digests of most of them, and both for the rows ahead.
        assert store.num_requests <= 2 * (STEPS + AHEAD_STEPS) * count
    assert list(tmp_path.iterdir()) == [], "rows are kept in memory"


def test_rows_are_right_whether_announced_or_not(tmp_path: Path) -> None:
    share = BatchShare(64, 8, 4, 4 / 64)
    with opened(tmp_path) as (tokens, store):
        own = tokens.order(SEED, LENGTH).at(8, 4)[1]
        tokens.prefetch(SEED, LENGTH, 0, share)
        wait_for("the rows ahead", lambda: store.num_requests >= 64)
        asked = store.num_requests
        assert np.array_equal(tokens.read(own, LENGTH).tokens, expected_rows(own, LENGTH))
        assert store.num_requests - asked < 64, "only of rows ahead"
        far = np.array([5000, 4999, 8191, 8192])  # the last two are in two shards
        assert np.array_equal(tokens.read(far, LENGTH).tokens, expected_rows(far, LENGTH))


def test_rows_near_each_other_share_a_request(tmp_path: Path) -> None:
    with opened(tmp_path, num_shards=4) as (tokens, _):
        far = tokens._far
        assert far is not None
        samples = np.array([100, 101, 103, 300])
        needs = far.row_needs(samples * LENGTH, LENGTH + 1, np.arange(4))
        assert [need.position for need in needs] == [0, 1, 2, 3]
        assert [(need.block.begin, need.block.end) for need in needs] == [
            *3 * [(100 * LENGTH, 104 * LENGTH + 1)],
            (300 * LENGTH, 301 * LENGTH + 1),
        ]
        again = far.row_needs(np.array([103, 104]) * LENGTH, LENGTH + 1, np.arange(2))
        assert again[0].block == needs[2].block, "announced before: on its way already"
        assert again[1].block.begin == 104 * LENGTH


def test_a_machine_that_needs_a_fifth_of_a_block_fetches_all_of_it() -> None:
    block, row = 4 * MIB, 16 * 1024
    assert rows_cost_less(256 / 6, row, block)
    assert not rows_cost_less(256 / 4, row, block)
    assert rows_cost_less(0.001, row, block)
    assert not rows_cost_less(0.001, block, block), "a row as long as a block is one"


def test_workers_of_a_machine_share_blocks_if_they_need_much_of_them(tmp_path: Path) -> None:
    small = {"block_tokens": 2**16, "window_blocks": 8}
    shares = [BatchShare(16, 2 * rank, 2, 0.5) for rank in range(4)]
    sets = [
        virtual_set("set", ReadOptions(cache=tmp_path, rank=rank), num_shards=1, **small)
        for rank in range(4)
    ]
    order = sets[0][0].order(SEED, LENGTH)
    for step in range(8):  # a window
        for (tokens, _), share in zip(sets, shares, strict=True):
            tokens.prefetch(SEED, LENGTH, step, share)
            own = order.at(step * 16 + share.first, 2)[1]
            assert np.array_equal(tokens.read(own, LENGTH).tokens, expected_rows(own, LENGTH))
    for tokens, _ in sets:
        tokens.close()
    requests = sum(store.num_requests - store.num_digest_requests for _, store in sets)
    assert requests < 2 * 3 * 8, "of two or three windows"


def wait_for_rest(store: VirtualStore) -> None:
    """Returns when nothing has been fetched for a while."""
    before = [-1]

    def rests() -> bool:
        known, before[0] = before[0], store.num_requests
        time.sleep(0.05)
        return known == store.num_requests

    wait_for("the announced rows", rests)


def test_the_announced_rows_follow_the_shares(tmp_path: Path) -> None:
    before, after = (BatchShare(BATCH, first, 2, 1 / 512) for first in (100, 700))
    with opened(tmp_path) as (tokens, store):
        read_steps(tokens, range(4), before)
        tokens.prefetch(SEED, LENGTH, 4, after)
        wait_for_rest(store)
        own = tokens.order(SEED, LENGTH).at(20 * BATCH + 700, 2)[1]
        asked = store.num_requests
        tokens.read(own, LENGTH)
        assert store.num_requests == asked
        # Few workers are left: their machines read whole blocks again.
        tokens.prefetch(SEED, LENGTH, 5, BatchShare(BATCH, 0, 256, 0.25))
        wait_for("blocks", lambda: list((tmp_path / "blocks").glob("*/[0-9]*")))


def test_rows_that_are_not_prepared_yet_are_not_announced() -> None:
    share, ahead = BatchShare(10, 4, 2, 0.1), StepsAhead()
    first = ahead.renewed("key", 0, share, 35)
    assert first is not None
    assert first.tolist() == [4, 5, 14, 15, 24, 25]
    assert ahead.renewed("key", 1, share, 35) is None
    more = ahead.renewed("key", 1, share, 100)
    assert more is not None
    assert more[0] == 14
    assert more[-1] == 95


def test_ahead_is_half_of_the_steps_at_least() -> None:
    share, ahead, until = BatchShare(10, 4, 2, 0.1), StepsAhead(), 0
    for step in range(200):
        rows = ahead.renewed("key", step, share)
        if rows is not None:
            assert rows[0] == step * 10 + 4
            until = int(rows[-1]) // 10 + 1
        assert AHEAD_STEPS // 2 <= until - step <= AHEAD_STEPS


# --- a mixture


def mixture_of(num: int, reading: ReadOptions, **how: Any) -> tuple[MixtureSet, list[VirtualStore]]:
    stores = [VirtualStore(f"set-{number}") for number in range(num)]
    reading = replace(reading, fetcher=reading.new_fetcher())
    sets = [
        TokenSet(
            store,
            virtual_manifest(2, **how).model_copy(update={"tokenizer_digest": store.root}),
            virtual_table(2),
            reading,
        )
        for store in stores
    ]
    members = tuple(
        MixtureMember(
            name=f"m{number}", location=store.root, weight=1, digest="0", slots=NUM_SLOTS // num
        )
        for number, store in enumerate(stores)
    )
    manifest_of_all = MixtureManifest(members=members, created_by="a test")
    return MixtureSet(Store("/nowhere"), manifest_of_all, sets), stores


def fetchers() -> int:
    return sum(thread.name == "fetcher" for thread in threading.enumerate())


def stored_bytes(cache: Path) -> int:
    total = 0
    for path in (cache / "blocks").glob("*/[0-9]*.*"):
        with suppress(FileNotFoundError):  # a fetching thread removes some
            total += path.stat().st_size
    return total


def test_members_of_a_mixture_share_threads_and_one_part_of_the_cache(tmp_path: Path) -> None:
    """Each has a window of 4 blocks; two of each would not fit."""
    before, said = fetchers(), list[str]()
    block = 4 * (2 * LENGTH + 1) + 16
    reading = ReadOptions(cache=tmp_path, cache_bytes=32 * 6 * block, warn=said.append)
    mixture, stores = mixture_of(32, reading, block_tokens=2 * LENGTH, window_blocks=4)
    order, share = mixture.order(SEED, LENGTH), BatchShare(64, 0, 64, 1.0)
    for step in range(6):  # a window and a half of each
        mixture.prefetch(SEED, LENGTH, step, share)
        mixture.read(order.at(64 * step, 64)[1], LENGTH)
        assert stored_bytes(tmp_path) <= reading.cache_bytes
    assert fetchers() - before == NUM_THREADS
    assert len(list((tmp_path / "blocks" / "readers").iterdir())) == 1
    assert not said, "no block had to be kept in memory"
    requests = sum(store.num_requests for store in stores)
    # Each block of the windows so far, and of the next, once, and the digests of its pages.
    assert requests <= 2 * 32 * 3 * 4
    mixture.close()
    assert fetchers() == before


def test_rows_of_all_members_are_fetched_in_the_order_of_need(tmp_path: Path) -> None:
    mixture, stores = mixture_of(4, ReadOptions(cache=tmp_path))
    share = BatchShare(BATCH, 512, 4, 1 / 256)
    samples = read_steps(mixture, range(8), share)
    wait_for("all ahead", lambda: sum(store.num_requests for store in stores) >= 3 * AHEAD_STEPS)
    assert all(store.num_requests >= AHEAD_STEPS // 2 for store in stores)
    assert sum(store.num_bytes for store in stores) <= 2 * 4 * (AHEAD_STEPS + 8) * ROW_BYTES
    rows = mixture.read(samples, LENGTH).tokens
    per_member = 2 * SHARD_TOKENS // LENGTH
    own = samples % ((2 * SHARD_TOKENS - 1) // LENGTH)
    assert per_member - 1 == mixture.num_own_samples(LENGTH)[0]
    assert np.array_equal(rows, expected_rows(own, LENGTH))
    mixture.close()
