"""Reading a set that is being prepared gives what reading the finished one gives, or waits."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data.prepare.recipe import read_recipe
from headway.data.reading.fetcher import NUM_THREADS
from headway.data.reading.growing_set import (
    AHEAD_SECONDS,
    POLL_SECONDS,
    STALL_SECONDS,
    GrowingSet,
)
from headway.data.reading.look_ahead import BatchShare
from headway.data.reading.sample_set import open_set
from headway.data.reading.token_set import ReadOptions, TokenSet
from headway.data.set_format import read_manifest
from headway.data.tiny_stories import stories
from headway.errors import BadInput, RunFailed
from headway.state.store import Store
from support.clock import Patient
from support.fake_s3 import fake_s3
from support.growing_sets import begin, finish_set, finish_shards, records
from support.prepared import folder_in_memory, job_for, run, run_part, write_lines
from support.token_sets import table_of, write_table

SEED = 3
SECTION = 4 * 64


@pytest.fixture(scope="module")
def whole(tokenizer: Path) -> Iterator[Path]:
    """About 40 shards and 20 sections of 256 tokens; one unit of which nothing is left."""
    with folder_in_memory() as folder:
        told = list(stories(12_000, 4))
        lines = [{"text": one} for one in told]
        write_lines(folder / "text.jsonl", [*lines[:9], *["{bad"] * 200, *lines[9:]])
        run(
            job_for(
                ["text.jsonl"],
                folder / "set",
                tokenizer,
                in_sequence=True,
                unit_bytes=350,
                block_tokens=64,
                window_blocks=4,
            )
        )
        yield folder / "set"


def opened(folder: Path, meanwhile: Callable[[], None] = lambda: None) -> GrowingSet:
    found = GrowingSet.open(Store(folder), ReadOptions(clock=Patient(meanwhile)))
    assert found is not None
    return found


@settings(max_examples=12)
@given(
    steps=st.lists(st.integers(0, 45), min_size=1, max_size=4).map(sorted),
    length=st.integers(1, 90),
    data=st.data(),
)
def test_every_position_there_is_holds_what_the_finished_set_has_there(
    whole: Path, steps: list[int], length: int, data: st.DataObject
) -> None:
    finished = TokenSet.open(Store(whole))
    order = finished.order(SEED, length)
    with folder_in_memory() as place:
        folder = place / "set"
        begin(whole, folder)
        growing = opened(folder)
        growing_order = growing.order(SEED, length)
        seen = 0
        for step in steps:
            finish_shards(whole, folder, step)
            there = growing.num_samples(length)
            assert seen <= there <= finished.num_samples(length)
            assert there % finished.samples_per_section(length) == 0
            seen = there
            if there:
                first = data.draw(st.integers(0, there - 1))
                count = data.draw(st.integers(0, there - first))
                epochs, samples = growing_order.at(first, count)
                assert not epochs.any()
                wanted = order.at(first, count)[1]
                assert samples.tolist() == wanted.tolist()
                rows = growing.read(samples[:3], length).tokens
                assert rows.tolist() == finished.read(wanted[:3], length).tokens.tolist()
        finish_set(whole, folder)
        total = growing.num_samples(length)
        assert total == finished.num_samples(length)
        assert growing.tail_tokens(length) == finished.tail_tokens(length)
        # Into the next epoch: that is known only now.
        for found, wanted in zip(
            growing_order.at(0, total + 9), order.at(0, total + 9), strict=True
        ):
            assert found.tolist() == wanted.tolist()


def test_all_positions_are_there_before_the_end(whole: Path, folder: Path) -> None:
    begin(whole, folder / "set")
    finish_shards(whole, folder / "set", 10**9)
    growing, finished = opened(folder / "set"), TokenSet.open(Store(whole))
    assert finished.num_samples(16) - growing.num_samples(16) < SECTION // 16
    assert growing.num_tokens == finished.manifest.num_tokens
    done, units = growing.progress
    assert done == units > 30


def test_it_is_the_same_set_before_and_after(whole: Path, folder: Path) -> None:
    begin(whole, folder / "set")
    growing, finished = open_set(Store(folder / "set")), open_set(Store(whole))
    assert isinstance(growing, GrowingSet)
    assert isinstance(finished, TokenSet)
    names = ("digest", "layout", "window_tokens", "vocab_size", "special_ids", "tokenizer_digest")
    for name in (*names, "in_sequence"):
        assert getattr(growing, name) == getattr(finished, name), name
    loaded = (growing.tokenizer_folder / "tokenizer.json").read_bytes()
    assert loaded == (finished.tokenizer_folder / "tokenizer.json").read_bytes()
    recipe = read_recipe(Store(whole))
    assert recipe is not None
    assert growing.digest == recipe.digest


def test_windows_grow_too(folder: Path, masked_tokenizer: Path) -> None:
    write_lines(folder / "text.jsonl", [{"text": one} for one in stories(6_000, 4)])
    job = job_for(
        ["text.jsonl"],
        folder / "set",
        masked_tokenizer,
        in_sequence=True,
        unit_bytes=700,
        window_tokens=16,
        block_tokens=64,
        window_blocks=2,
    )
    run(job)
    begin(folder / "set", folder / "again")
    growing, finished = opened(folder / "again"), TokenSet.open(Store(folder / "set"))
    finish_shards(folder / "set", folder / "again", 6)
    there = growing.num_samples(16)
    assert 0 < there < finished.num_samples(16)
    assert there % 8 == 0
    found, wanted = growing.order(1, 16).at(0, there), finished.order(1, 16).at(0, there)
    assert found[1].tolist() == wanted[1].tolist()


def test_only_sets_in_sequence_can_be_read_before_the_end(folder: Path, tokenizer: Path) -> None:
    (folder / "text.txt").write_text("Once upon a time.")
    run_part(job_for(["text.txt"], folder / "set", tokenizer), 0, 2)
    assert GrowingSet.open(Store(folder / "set")) is None
    assert GrowingSet.open(Store(folder / "nowhere")) is None


# --- waiting


def test_it_waits_until_there_is_enough(whole: Path, folder: Path) -> None:
    begin(whole, folder / "set")
    finished = []

    def prepare_on() -> None:
        finished.append(True)
        finish_shards(whole, folder / "set", len(finished))

    growing = opened(folder / "set", prepare_on)
    shown = []
    growing.wait_for(40, 16, lambda one: shown.append(one.num_tokens))
    assert growing.num_samples(16) >= 40
    assert growing.num_samples(16) - SECTION // 16 < 40, "and not longer"
    assert shown == sorted(shown)
    assert shown[0] == 0
    assert len(shown) == len(finished)


def test_a_position_that_is_asked_for_is_waited_for(whole: Path, folder: Path) -> None:
    begin(whole, folder / "set")
    growing = opened(folder / "set", lambda: finish_shards(whole, folder / "set", 20))
    found = growing.order(SEED, 16).at(20, 5)[1]
    assert found.tolist() == TokenSet.open(Store(whole)).order(SEED, 16).at(20, 5)[1].tolist()


def test_the_end_of_the_set_ends_the_waiting(whole: Path, folder: Path) -> None:
    begin(whole, folder / "set")
    growing = opened(folder / "set", lambda: finish_set(whole, folder / "set"))
    growing.wait_for(10**9, 16)
    total = TokenSet.open(Store(whole)).num_samples(16)
    assert growing.num_samples(16) == total
    assert np.unique(growing.order(SEED, 16).at(0, total)[1]).size == total


def test_it_gives_up_when_nothing_comes(whole: Path, folder: Path) -> None:
    begin(whole, folder / "set")
    finish_shards(whole, folder / "set", 2)
    clock = Patient()
    growing = GrowingSet.open(Store(folder / "set"), ReadOptions(clock=clock))
    assert growing is not None
    with pytest.raises(RunFailed, match="no new shard for 30 minutes") as caught:
        growing.wait_for(1000, 16)
    assert f"headway data show {folder / 'set'}" in (caught.value.hint or "")
    assert STALL_SECONDS <= clock.passed <= STALL_SECONDS + 2 * POLL_SECONDS


@pytest.mark.long("ten seconds of polls")
def test_it_does_not_give_up_as_long_as_shards_come(whole: Path, folder: Path) -> None:
    """A section may take longer than anybody waits for a shard."""
    begin(whole, folder / "set")
    clock = Patient()
    growing = GrowingSet.open(Store(folder / "set"), ReadOptions(clock=clock))
    assert growing is not None

    def prepare_slowly(growing: GrowingSet) -> None:
        finish_shards(whole, folder / "set", int(clock.passed // (0.9 * STALL_SECONDS)))

    growing.wait_for(1, 300, prepare_slowly)
    assert growing.num_samples(300) >= 1
    assert clock.passed > 1.5 * STALL_SECONDS


def test_it_fails_at_once_when_the_preparation_has(whole: Path, folder: Path) -> None:
    begin(whole, folder / "set")
    finish_shards(whole, folder / "set", 10)
    (folder / "set" / "failed.txt").write_text("the disk is full")
    clock = Patient()
    growing = GrowingSet.open(Store(folder / "set"), ReadOptions(clock=clock))
    assert growing is not None
    there = growing.num_samples(16)
    assert there > 0
    growing.order(SEED, 16).at(0, there)  # what is there is there
    with pytest.raises(RunFailed, match="failed: the disk is full"):
        growing.order(SEED, 16).at(there, 1)
    assert clock.passed == 0


class CountingStore(Store):
    """Counts what it is asked for."""

    asked = 0

    def size(self, name: str) -> int | None:
        self.asked += 1
        return super().size(name)


def test_the_store_is_not_asked_for_what_is_known(whole: Path, folder: Path) -> None:
    """In a bucket each look is a request, and each worker draws at every step."""
    begin(whole, folder / "set")
    finish_shards(whole, folder / "set", 20)
    store, clock = CountingStore(folder / "set"), Patient()
    recipe = read_recipe(store)
    assert recipe is not None
    growing = GrowingSet(store, recipe, ReadOptions(clock=clock))
    there = growing.num_samples(16)
    order, looked = growing.order(SEED, 16), store.asked
    for position in range(there):
        order.at(position, 1)
    growing.prefetch(SEED, 16, 0, BatchShare(there, 0, there, 1.0))
    assert store.asked == looked
    # What nobody waits for yet is looked for now and then.
    clock.passed += AHEAD_SECONDS
    for _ in range(10):
        growing.prefetch(SEED, 16, there, BatchShare(1, 0, 1, 1.0))
    assert store.asked == looked + 1
    finish_shards(whole, folder / "set", 10**9)
    clock.passed += AHEAD_SECONDS
    growing.prefetch(SEED, 16, there, BatchShare(1, 0, 1, 1.0))
    assert store.asked == looked + 2
    order.at(there, 1)
    assert store.asked == looked + 2, "the look ahead has found it"


def test_closing_ends_the_waiting(whole: Path, folder: Path) -> None:
    begin(whole, folder / "set")
    growing = opened(folder / "set", lambda: growing.close())
    with pytest.raises(RunFailed, match="was closed"):
        growing.wait_for(1, 16)


# --- a bucket


@pytest.fixture
def bucket() -> Iterator[Store]:
    with fake_s3():
        yield Store("s3://bucket/set")


def begin_in(bucket: Store, whole: Path) -> list[Path]:
    """Copy all but the records and the manifest; return the records, which finish the shards."""
    for path in sorted(path for path in whole.rglob("*") if path.is_file()):
        if path.name != "manifest.json" and path not in records(whole):
            bucket.write(path.relative_to(whole).as_posix(), path.read_bytes())
    return records(whole)


def finish_in(bucket: Store, record: Path) -> None:
    bucket.write(f"shards/{record.name}", record.read_bytes())


def fetchers() -> int:
    return sum(thread.name == "fetcher" for thread in threading.enumerate())


def test_each_shard_that_comes_costs_no_thread_lease_or_descriptor(
    whole: Path, bucket: Store, tmp_path: Path
) -> None:
    finished, before = TokenSet.open(Store(whole)), fetchers()
    shards = begin_in(bucket, whole)
    growing = GrowingSet.open(bucket, ReadOptions(cache=tmp_path))
    assert growing is not None
    order, wanted, seen = growing.order(SEED, 16), finished.order(SEED, 16), 0
    descriptors = []
    for shard in shards:
        finish_in(bucket, shard)
        there = growing.num_samples(16)
        if there > seen:
            growing.prefetch(SEED, 16, seen, BatchShare(1, 0, 1, 1.0))
            samples = order.at(seen, there - seen)[1]
            assert samples.tolist() == wanted.at(seen, there - seen)[1].tolist()
            rows = growing.read(samples, 16).tokens
            assert rows.tolist() == finished.read(samples, 16).tokens.tolist()
            descriptors.append(len(os.listdir("/proc/self/fd")))
        seen = there
    assert len(descriptors) > 10, "the set has grown many times"
    assert fetchers() - before == NUM_THREADS
    assert len(os.listdir(tmp_path / "blocks" / "readers")) == 1
    assert descriptors[-1] - descriptors[0] < 32, "those of the mapped blocks of two windows"
    bucket.write("manifest.json", (whole / "manifest.json").read_bytes())
    total = growing.num_samples(16)
    rows = growing.read(np.arange(total), 16).tokens
    assert rows.tolist() == finished.read(np.arange(total), 16).tokens.tolist()
    growing.close()
    assert fetchers() == before
    assert os.listdir(tmp_path / "blocks" / "readers") == []


def test_rows_of_a_growing_set_are_fetched_one_by_one(
    whole: Path, bucket: Store, tmp_path: Path
) -> None:
    """By a worker whose machine reads little of each batch."""
    finished, shards = TokenSet.open(Store(whole)), begin_in(bucket, whole)
    growing = GrowingSet.open(bucket, ReadOptions(cache=tmp_path))
    assert growing is not None
    wanted, share, step = finished.order(SEED, 16), BatchShare(4, 1, 1, 0.01), 0
    for shard in shards[:30]:
        finish_in(bucket, shard)
        while (step + 1) * 4 <= growing.num_samples(16):
            growing.prefetch(SEED, 16, step, share)
            samples = wanted.at(4 * step + 1, 1)[1]
            rows = growing.read(samples, 16).tokens
            assert rows.tolist() == finished.read(samples, 16).tokens.tolist()
            step += 1
    assert step > 30
    assert not (tmp_path / "blocks").exists(), "no block was stored"
    growing.close()


def test_a_block_that_was_read_when_it_was_short_is_read_again(
    whole: Path, bucket: Store, tmp_path: Path
) -> None:
    """The last block of what is prepared has fewer tokens than it gets later."""
    shards = begin_in(bucket, whole)
    for shard in shards[:9]:
        finish_in(bucket, shard)
    # A file where the folder of the cache should be: blocks are held in memory.
    (tmp_path / "blocks").touch()
    growing = GrowingSet.open(bucket, ReadOptions(cache=tmp_path, warn=lambda message: None))
    assert growing is not None
    assert growing.num_samples(16) > 0
    last = growing.known.num_samples(16) - 1
    growing.read(np.array([last]), 16)
    for shard in shards[9:]:
        finish_in(bucket, shard)
    growing.num_samples(16)
    samples = np.arange(last, last + 8)
    rows = growing.read(samples, 16).tokens
    assert rows.tolist() == TokenSet.open(Store(whole)).read(samples, 16).tokens.tolist()
    growing.close()


def test_a_set_that_was_replaced_while_it_was_read_is_refused(whole: Path, folder: Path) -> None:
    begin(whole, folder / "set")
    finish_shards(whole, folder / "set", 10)
    growing = opened(folder / "set")
    assert growing.num_samples(16) > 0
    finish_set(whole, folder / "set")
    other = [*table_of(whole)][::-1]
    digest = write_table(folder / "set", other)
    manifest = read_manifest(Store(whole)).model_copy(update={"shard_table_digest": digest})
    (folder / "set" / "manifest.json").write_text(manifest.model_dump_json(exclude_none=True))
    with pytest.raises(BadInput, match="has changed while it was read"):
        growing.num_samples(16)
