"""Batches are the same whenever and by whomever they are made; made ahead, they only save time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.clock import SystemClock
from headway.data.reading.growing_set import GrowingSet
from headway.data.reading.look_ahead import BatchShare
from headway.data.reading.token_set import ReadOptions, TokenRows, TokenSet
from headway.data.set_format import SpecialIds
from headway.data.tiny_stories import stories
from headway.errors import BadInput
from headway.plan.batch_division import MicroBatchShare, divide
from headway.state.store import Store
from headway.train import feed as feeding
from headway.train.batches import IGNORED, Batch
from headway.train.feed import Feed
from support.clock import Patient
from support.fake_s3 import fake_s3
from support.prepared import job_for, run, write_lines
from support.stolen_time import Stopwatch
from support.token_sets import copy_to, write_set
from support.waiting import wait_for

LENGTH, BATCH, MICRO = 8, 7, 2
TOKENS = [(7 * number) % 90 + 5 for number in range(1001)]
COUNTS = [number % 3 != 0 for number in range(1001)]
IDS = SpecialIds(end_of_text=0, mask=1, special=(0, 1))
WHOLE = MicroBatchShare(first=0, count=4, padded=0)


class Watched(TokenSet):
    """Notes which samples are read by which thread; reading can be held up or made to fail."""

    reads: list[tuple[str, list[int]]]
    gate: threading.Event
    trouble: Exception | None

    def read(self, samples: np.ndarray, sequence_length: int) -> TokenRows:
        self.reads.append((threading.current_thread().name, samples.tolist()))
        assert self.gate.wait(20)
        if self.trouble is not None:
            raise self.trouble
        return super().read(samples, sequence_length)


def watched(location: str | Path, **how: Any) -> Watched:
    opened = Watched.open(Store(location), ReadOptions(**how))
    assert isinstance(opened, Watched)
    opened.reads, opened.gate, opened.trouble = [], threading.Event(), None
    opened.gate.set()
    return opened


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`stream` with a loss mask and `windows`, both of small blocks."""
    place = tmp_path_factory.mktemp("sets")
    small = {"block_tokens": 40, "window_blocks": 3}
    write_set(place / "stream", [(TOKENS, COUNTS)], shard_tokens=99, special_ids=IDS, **small)
    windows = TOKENS[:1000]
    write_set(place / "windows", [(windows, None)], window_tokens=LENGTH, special_ids=IDS, **small)
    return place


def feed_of(
    samples: TokenSet,
    masking: float | None = None,
    clock: Any = None,
    seed: int = 5,
    local_workers: int = 1,
) -> Feed:
    return Feed(
        samples,
        sequence_length=LENGTH,
        global_batch=BATCH,
        micro=MICRO,
        seed=seed,
        device=torch.device("cpu"),
        objective="masked" if masking else "causal",
        masking=masking,
        clock=clock or SystemClock(),
        local_workers=local_workers,
    )


@pytest.fixture
def samples(folder: Path) -> Iterator[Watched]:
    opened = watched(folder / "stream")
    yield opened
    opened.gate.set()


def same(one: Batch, other: Batch) -> bool:
    return one.seed == other.seed and all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in ("inputs", "targets", "is_real")
    )


def test_a_step_is_the_rows_of_its_positions(samples: Watched) -> None:
    feed = feed_of(samples)
    expected = samples.order(5, LENGTH).at(3 * BATCH, BATCH)[1]
    batches = list(feed.step(3, WHOLE))
    feed.close()
    inputs = torch.cat([batch.inputs for batch in batches])
    targets = torch.cat([batch.targets for batch in batches])
    is_real = torch.cat([batch.is_real for batch in batches])
    assert is_real.tolist() == [True] * 7 + [False]
    for row, sample in enumerate(expected.tolist()):
        piece = slice(sample * LENGTH, sample * LENGTH + LENGTH + 1)
        assert inputs[row].tolist() == TOKENS[piece][:-1]
        wanted = zip(TOKENS[piece][1:], COUNTS[piece][1:], strict=True)
        assert targets[row].tolist() == [t if counts else IGNORED for t, counts in wanted]
    assert (targets[7] == IGNORED).all()


shares = st.sampled_from([share for workers in (1, 2, 3, 5) for share in divide(4, workers)])


@settings(max_examples=40)
@given(asked=st.lists(st.tuples(st.integers(0, 6), shares), min_size=1, max_size=12))
@pytest.mark.parametrize("masking", [None, 0.3])
@pytest.mark.parametrize("far", [False, True])
def test_whatever_is_asked_in_whatever_order_it_is_what_a_fresh_feed_gives(
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    masking: float | None,
    far: bool,
    asked: list[tuple[int, MicroBatchShare]],
) -> None:
    place = folder / ("windows" if masking else "stream")
    with fake_s3():
        cache = tmp_path_factory.mktemp("cache")
        location = copy_to("s3://bucket/set", place) if far else str(place)
        feed = feed_of(TokenSet.open(Store(location), ReadOptions(cache=cache)), masking)
        for step, share in asked:
            fresh = feed_of(TokenSet.open(Store(place)), masking)
            pairs = zip(feed.step(step, share), fresh.step(step, share), strict=True)
            assert all(same(one, other) for one, other in pairs)
            fresh.close()
        feed.close()


def test_the_next_step_is_read_while_this_one_computes(samples: Watched) -> None:
    feed = feed_of(samples)
    steps = [samples.order(5, LENGTH).at(step * BATCH, BATCH)[1].tolist() for step in range(4)]
    next(feed.step(0, WHOLE))
    wait_for("step 1", lambda: len(samples.reads) == 2)
    next(feed.step(1, WHOLE))
    wait_for("step 2", lambda: len(samples.reads) == 3)
    assert [read for _, read in samples.reads] == steps[:3], "each once, and one ahead only"
    assert [thread for thread, _ in samples.reads[1:]] == ["prefetch", "prefetch"]
    feed.close()


def test_the_first_step_can_be_made_ahead_too(samples: Watched) -> None:
    feed = feed_of(samples)
    feed.prefetch(3, WHOLE)
    wait_for("step 3", lambda: len(samples.reads) == 1)
    fresh = feed_of(watched(samples.location))
    assert same(next(feed.step(3, WHOLE)), next(fresh.step(3, WHOLE)))
    assert samples.reads[0][0] == "prefetch"
    feed.close()
    fresh.close()


def test_reading_an_earlier_step_keeps_the_prefetched_batch(samples: Watched) -> None:
    feed = feed_of(samples)
    next(feed.step(0, WHOLE))
    next(feed.step(1, WHOLE))
    next(feed.step(1, MicroBatchShare(first=0, count=1, padded=0)))  # as the activations do
    wait_for("step 2", lambda: len(samples.reads) == 4)
    next(feed.step(2, WHOLE))
    wait_for("step 3", lambda: len(samples.reads) == 5)
    assert [thread for thread, _ in samples.reads].count("prefetch") == 3
    feed.close()


def test_another_share_is_read_when_it_is_asked_for(samples: Watched) -> None:
    feed = feed_of(samples)
    half = divide(4, 2)[1]
    list(feed.step(0, WHOLE))
    (first, *_), fresh = list(feed.step(1, half)), feed_of(samples)
    assert same(first, next(fresh.step(1, half)))
    feed.close()
    fresh.close()


class Announced(Watched):
    """Notes what is announced."""

    announced: list[tuple[int, BatchShare]]

    def prefetch(
        self, seed: int, sequence_length: int, step: int, share: BatchShare, end: int | None = None
    ) -> None:
        self.announced.append((step, share))


def test_a_worker_announces_its_own_rows_also_after_the_shares_have_changed(folder: Path) -> None:
    samples = Announced.open(Store(folder / "stream"))
    assert isinstance(samples, Announced)
    samples.reads, samples.announced, samples.trouble = [], [], None
    samples.gate = threading.Event()
    samples.gate.set()
    feed = feed_of(samples, local_workers=2)
    feed.num_workers = 4
    list(feed.step(0, divide(4, 4)[3]))
    wait_for("the next step", lambda: len(samples.reads) == 2)
    feed.num_workers = 1  # the others were lost
    list(feed.step(1, WHOLE))
    assert samples.announced[:2] == [(step, BatchShare(BATCH, 6, 1, 0.5)) for step in (0, 1)]
    assert samples.announced[2] == (1, BatchShare(BATCH, 0, BATCH, 1.0))
    feed.close()


def test_only_waiting_counts_as_waiting(samples: Watched) -> None:
    feed = feed_of(samples)
    next(feed.step(0, WHOLE))
    wait_for("step 1", lambda: len(samples.reads) == 2 and feed._prefetched)
    assert feed._prefetched is not None
    feed._prefetched.rows.result()
    before = feed.waited_seconds
    samples.gate.clear()  # step 2 cannot be read, which is not this step's loss
    next(feed.step(1, WHOLE))
    assert feed.waited_seconds - before < 1.0
    threading.Timer(0.3, samples.gate.set).start()
    next(feed.step(2, WHOLE))
    assert feed.waited_seconds - before > 0.25
    feed.close()


def test_what_goes_wrong_ahead_is_raised_at_the_step_that_needs_it(samples: Watched) -> None:
    feed = feed_of(samples)
    next(feed.step(0, WHOLE))
    wait_for("step 1", lambda: len(samples.reads) == 2 and feed._prefetched)
    assert feed._prefetched is not None
    feed._prefetched.rows.result()
    samples.trouble = BadInput("shard 7 is missing", "fetch it")
    next(feed.step(1, WHOLE))
    wait_for("step 2", lambda: len(samples.reads) == 3)
    with pytest.raises(BadInput, match="shard 7 is missing"):
        next(feed.step(2, WHOLE))
    samples.trouble = None
    fresh = feed_of(samples)
    assert same(next(feed.step(2, WHOLE)), next(fresh.step(2, WHOLE)))
    feed.close()
    fresh.close()


def test_no_thread_is_left_after_closing(folder: Path, tmp_path: Path) -> None:
    before = threading.active_count()
    with fake_s3():
        location = copy_to("s3://bucket/set", folder / "stream")
        feed = feed_of(TokenSet.open(Store(location), ReadOptions(cache=tmp_path)))
        assert threading.active_count() == before, "a feed that is only open has none"
        next(feed.step(0, WHOLE))
        ours = [t for t in threading.enumerate() if t.name in ("prefetch", "fetcher")]
        assert {thread.name for thread in ours} == {"prefetch", "fetcher"}
        assert all(thread.daemon for thread in ours), "none keeps a process from ending"
        feed.close()
    assert threading.active_count() == before


# --- a fixed set, for evaluation


@pytest.mark.parametrize("masking", [None, 0.3])
@pytest.mark.parametrize("workers", [1, 2, 3, 40])
def test_a_fixed_set_is_the_same_in_any_portions(
    folder: Path, masking: float | None, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = TokenSet.open(Store(folder / ("windows" if masking else "stream")))
    for share in divide(28, workers, workers if workers == 2 else 1):
        whole = list(feed_of(samples, masking).fixed(55, share))
        monkeypatch.setattr(feeding, "PORTION_TOKENS", 3 * MICRO * LENGTH)
        feed = feed_of(samples, masking)
        pieces = list(feed.fixed(55, share))
        monkeypatch.undo()
        assert len(pieces) == share.num_passes
        assert all(same(one, other) for one, other in zip(whole, pieces, strict=True))
        feed.close()


def rows_of(samples: Watched, num_rows: int, seed: int, workers: int = 1) -> list[int]:
    """The samples that an evaluation of so many rows reads."""
    samples.reads.clear()
    for share in divide(-(-num_rows // MICRO), workers, 1):
        feed = feed_of(samples, seed=seed)
        list(feed.fixed(num_rows, share))
        feed.close()
    return [sample for _, read in samples.reads for sample in read]


def test_a_part_of_a_set_is_a_sample_fixed_by_the_seed(samples: Watched) -> None:
    """Its first sequences are of its first documents, and say little about the rest."""
    total = samples.num_samples(LENGTH)
    part = rows_of(samples, 20, seed=5)
    assert len(set(part)) == 20
    assert min(part) < total / 4
    assert max(part) > 3 * total / 4
    assert rows_of(samples, 20, seed=5, workers=3) == part
    assert rows_of(samples, 10, seed=5) == part[:10], "more sequences are those and others"
    assert set(rows_of(samples, 20, seed=6)) != set(part)
    assert rows_of(samples, total, seed=5) == list(range(total))


def test_a_fixed_set_is_read_one_portion_ahead(
    samples: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "PORTION_TOKENS", 2 * MICRO * LENGTH)
    feed = feed_of(samples)
    batches = feed.fixed(20, MicroBatchShare(first=0, count=10, padded=0))
    next(batches)
    wait_for("the second portion", lambda: len(samples.reads) == 2)
    expected = samples.order(5, LENGTH).at(0, 8)[1].tolist()
    assert [read for _, read in samples.reads] == [expected[:4], expected[4:]]
    assert samples.reads[1][0] == "prefetch"
    assert len(list(batches)) == 9
    feed.close()


class NotThereYet(Watched):
    """Whose samples from a position on are still being prepared."""

    there: threading.Event

    def wait_for(
        self, end: int, sequence_length: int, show: Callable[..., None] = lambda growing: None
    ) -> None:
        if end > 3 * BATCH:
            assert self.there.wait(20)


def test_a_step_taken_again_does_not_wait_for_the_data_of_the_next(folder: Path) -> None:
    """Which had been asked for before the loss."""
    samples = NotThereYet.open(Store(folder / "stream"), ReadOptions())
    assert isinstance(samples, NotThereYet)
    samples.reads, samples.gate, samples.trouble = [], threading.Event(), None
    samples.gate.set()
    samples.there = threading.Event()
    feed = feed_of(samples)
    list(feed.step(2, WHOLE))  # the next one is expected now, and is not there
    feed.prefetch(2, WHOLE)
    watch = Stopwatch()
    assert len(list(feed.step(2, WHOLE))) == WHOLE.num_passes
    assert watch.seconds < 10
    samples.there.set()
    feed.close()


def growing(tmp_path: Path, clock: Patient) -> tuple[GrowingSet, Callable[[int], None]]:
    """A set of which nothing is prepared yet, and what prepares so many of its shards."""
    lines = [{"text": one} for one in stories(12_000, 4)]
    write_lines(tmp_path / "text.jsonl", lines)
    small = {"unit_bytes": 350, "block_tokens": 64, "window_blocks": 4}
    run(job_for(["text.jsonl"], tmp_path / "set", 400, in_sequence=True, **small))
    records = sorted((tmp_path / "set" / "shards").glob("*.json"))
    contents = {path: path.read_bytes() for path in records}
    for path in (*records, tmp_path / "set" / "manifest.json"):
        path.unlink()

    def prepare(count: int) -> None:
        for path in records[:count]:
            path.write_bytes(contents[path])

    found = GrowingSet.open(Store(tmp_path / "set"), ReadOptions(clock=clock))
    assert found is not None
    return found, prepare


def test_waiting_for_what_is_not_prepared_is_told_from_reading(tmp_path: Path) -> None:
    def meanwhile() -> None:
        if clock.passed >= 30:
            prepare(1000 if clock.passed >= 100 else 8)

    clock = Patient(meanwhile)
    found, prepare = growing(tmp_path, clock)
    feed = feed_of(found, clock=clock)
    assert feed.unprepared_seconds == clock.passed >= 30, "until there was a first sample"
    assert feed.waited_seconds == 0
    first, began = feed.unprepared_seconds, clock.passed
    far = found.num_samples(LENGTH) // BATCH + 3
    assert len(list(feed.step(far, WHOLE))) == WHOLE.count
    assert feed.waited_seconds == feed.unprepared_seconds - first == clock.passed - began > 0
    before = feed.unprepared_seconds
    list(feed.step(0, WHOLE))
    assert feed.unprepared_seconds == before, "that was there"
    feed.close()
