"""A run sees every sample once an epoch, in an order that never changes under its feet."""

from __future__ import annotations

import itertools
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data.order import Order, Permutation, Window

AWKWARD_SIZES = [1, 2, 3, 5, 7, 13, 16, 17, 31, 33, 64, 65, 97, 100, 257, 1025]


def epoch_samples(order: Order, epoch: int) -> np.ndarray:
    return order.at(epoch * order.num_samples, order.num_samples)[1]


@pytest.mark.parametrize("num_samples", AWKWARD_SIZES)
def test_an_epoch_visits_every_sample_once(num_samples: int) -> None:
    for block, window in itertools.product([1, 2, 3, 7, 64, 5000], [1, 2, 3, 64, 10**6]):
        order = Order(3, num_samples, block, window)
        epochs, samples = order.at(2 * num_samples, num_samples)
        assert np.array_equal(np.sort(samples), np.arange(num_samples)), (block, window)
        assert (epochs == 2).all()


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(-(2**70), 2**70),
    num_samples=st.integers(1, 3000),
    block=st.integers(1, 400),
    window=st.integers(1, 20),
    epoch=st.integers(0, 10**6),
)
def test_an_epoch_visits_every_sample_once_whatever_the_sizes(
    seed: int, num_samples: int, block: int, window: int, epoch: int
) -> None:
    samples = epoch_samples(Order(seed, num_samples, block, window), epoch)
    assert np.array_equal(np.sort(samples), np.arange(num_samples))


def listed_order(
    num_samples: int, block: int, window: int, purpose: str, *key: int
) -> Iterator[int]:
    """The order as its definition says it, with lists."""
    samples = list(range(num_samples))
    blocks = [samples[start : start + block] for start in range(0, num_samples, block)]
    permutation = Permutation(len(blocks), f"{purpose}/blocks", *key)
    row = [blocks[number] for number in permutation.forward(np.arange(len(blocks)))]
    for number, start in enumerate(range(0, len(row), window)):
        together = list(itertools.chain(*row[start : start + window]))
        permutation = Permutation(len(together), f"{purpose}/window", *key, number)
        yield from (together[place] for place in permutation.forward(np.arange(len(together))))


@settings(deadline=None, max_examples=60)
@given(
    num_samples=st.integers(1, 300),
    block=st.integers(1, 40),
    window=st.integers(1, 8),
    epoch=st.integers(0, 3),
)
def test_an_epoch_is_what_its_definition_says(
    num_samples: int, block: int, window: int, epoch: int
) -> None:
    order = Order(9, num_samples, block, window)
    expected = listed_order(num_samples, block, window, "order/1", 9, epoch)
    assert epoch_samples(order, epoch).tolist() == list(expected)


@settings(deadline=None, max_examples=60)
@given(
    num_samples=st.integers(1, 300),
    block=st.integers(1, 40),
    window=st.integers(1, 8),
    section=st.integers(1, 400),
    epoch=st.integers(0, 3),
)
def test_each_section_is_an_epoch_of_its_own_under_other_keys(
    num_samples: int, block: int, window: int, section: int, epoch: int
) -> None:
    section = max(section, num_samples // 10)
    expected = []
    for number, start in enumerate(range(0, num_samples, section)):
        size = min(section, num_samples - start)
        inside = listed_order(size, block, window, "order/1/section", 9, epoch, number)
        expected += [start + sample for sample in inside]
    order = Order(9, num_samples, block, window, section)
    assert epoch_samples(order, epoch).tolist() == expected
    assert sorted(expected) == list(range(num_samples))


@settings(deadline=None, max_examples=60)
@given(
    section=st.integers(1, 200),
    num_sections=st.integers(1, 4),
    more=st.integers(0, 10**12),
    block=st.integers(1, 40),
    window=st.integers(1, 8),
)
def test_what_is_finished_of_a_set_is_read_in_the_same_order_while_the_set_grows(
    section: int, num_sections: int, more: int, block: int, window: int
) -> None:
    finished = section * num_sections
    early = Order(9, finished, block, window, section)
    late = Order(9, finished + more, block, window, section)
    assert early.at(0, finished)[1].tolist() == late.at(0, finished)[1].tolist()
    # Nothing of what is still to come is asked for.
    assert sorted(late.at(0, finished)[1].tolist()) == list(range(finished))
    assert early.window_at(finished - 1) == late.window_at(finished - 1)


def test_a_section_has_another_order_than_a_set_of_its_size_and_other_sections() -> None:
    whole = epoch_samples(Order(1, 500, 8, 4), 0)
    first, second = np.split(epoch_samples(Order(1, 1000, 8, 4, 500), 0), 2)
    for one, other in itertools.combinations([whole, first, second - 500], 2):
        assert (one == other).sum() < 10


@pytest.mark.trap(29)
@settings(deadline=None, max_examples=60)
@given(
    num_samples=st.integers(1, 200),
    section=st.none() | st.integers(5, 200),
    first=st.integers(0, 2000),
    count=st.integers(0, 300),
    cut=st.integers(0, 300),
)
def test_a_batch_does_not_depend_on_how_it_is_divided(
    num_samples: int, section: int | None, first: int, count: int, cut: int
) -> None:
    order = Order(5, num_samples, 4, 3, section)
    cut = min(cut, count)
    whole = np.stack(order.at(first, count))
    left, right = order.at(first, cut), order.at(first + cut, count - cut)
    assert np.array_equal(whole, np.concatenate([np.stack(left), np.stack(right)], axis=1))


def test_a_batch_may_straddle_epochs() -> None:
    order = Order(1, 10, 3, 2)
    epochs, samples = order.at(8, 15)
    assert epochs.tolist() == [0] * 2 + [1] * 10 + [2] * 3
    assert sorted(samples[2:12].tolist()) == list(range(10))
    assert epochs.dtype == samples.dtype == np.int64


def test_a_batch_may_straddle_sections_and_epochs() -> None:
    epochs, samples = Order(1, 10, 3, 2, samples_per_section=4).at(8, 15)
    assert epochs.tolist() == [0] * 2 + [1] * 10 + [2] * 3
    sections = [samples[:2], samples[2:6], samples[6:10], samples[10:12]]
    assert [sorted(section.tolist()) for section in sections] == [
        [8, 9],
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]


def test_the_order_is_another_one_in_every_epoch_and_for_every_seed() -> None:
    orders = [epoch_samples(Order(seed, 500, 8, 4), epoch) for seed in (0, 1) for epoch in (0, 1)]
    for one, other in itertools.combinations(orders, 2):
        # Of two unrelated orders about one place agrees.
        assert (one == other).sum() < 10


def test_the_order_is_frozen() -> None:
    """Never update these values: every run that could be resumed would continue with other data."""
    assert Order(17, 1000, 16, 4).at(0, 8)[1].tolist() == [452, 463, 615, 566, 453, 853, 854, 609]
    epochs, samples = Order(17, 1000, 16, 4).at(998, 4)
    assert epochs.tolist() == [0, 0, 1, 1]
    assert samples.tolist() == [585, 509, 962, 946]
    large = Order(17, 10**13 // 1024, 1024, 64).at(123_456_789_012, 4)[1]
    assert large.tolist() == [2449581801, 1343822653, 1565440314, 1633669793]


def test_the_order_in_sections_is_frozen() -> None:
    """Never update these values either."""
    order = Order(17, 1000, 16, 4, samples_per_section=300)
    assert order.at(0, 8)[1].tolist() == [43, 153, 198, 154, 37, 38, 149, 145]
    assert order.at(298, 4)[1].tolist() == [10, 269, 379, 478]
    assert order.at(898, 4)[1].tolist() == [819, 818, 930, 931]
    epochs, samples = order.at(998, 4)
    assert epochs.tolist() == [0, 0, 1, 1]
    assert samples.tolist() == [991, 936, 109, 37]
    assert order.window_at(299) == Window(252, 300, ((0, 16), (160, 176), (256, 272)))
    large = Order(17, 10**13 // 1024, 1024, 64, samples_per_section=2**20)
    expected = [6268679530, 6269432666, 6268715783, 6269060306]
    assert large.at(123_456_789_012, 4)[1].tolist() == expected


@settings(deadline=None, max_examples=40)
@given(
    num_samples=st.integers(1, 300),
    block=st.integers(1, 40),
    window=st.integers(1, 8),
    section=st.none() | st.integers(20, 300),
    epoch=st.integers(0, 3),
)
def test_a_window_names_exactly_the_samples_drawn_in_it(
    num_samples: int, block: int, window: int, section: int | None, epoch: int
) -> None:
    order = Order(9, num_samples, block, window, section)
    per_section = section or num_samples
    position = epoch * num_samples
    while position < (epoch + 1) * num_samples:
        here = order.window_at(position)
        assert here.first_position == position
        assert order.window_at(here.end_position - 1) == here
        ranges = [range(start, end) for start, end in here.samples]
        count = here.end_position - position
        drawn = sorted(order.at(position, count)[1].tolist())
        assert drawn == sorted(itertools.chain(*ranges))
        assert len(ranges) <= window
        for samples in ranges:
            # Whole blocks, counted from the beginning of their section.
            start = samples.start % per_section
            assert start % block == 0
            size = min(per_section, num_samples - samples.start + start)
            assert len(samples) == min(block, size - start)
        position = here.end_position
    assert position == (epoch + 1) * num_samples


def test_reads_stay_inside_a_window_of_whole_blocks() -> None:
    num_samples, block, window = 64 * 50 + 13, 64, 5
    samples = epoch_samples(Order(2, num_samples, block, window), 0)
    for start in range(0, num_samples - 2 * block * window, block * window):
        # A shorter last block shifts what follows it by less than one block.
        touched = np.unique(samples[start : start + block * (window - 1)] // block)
        assert len(touched) <= 2 * window


def test_each_window_holds_its_blocks_whole() -> None:
    samples = epoch_samples(Order(2, 1000, 10, 5), 0)
    for start in range(0, 1000, 50):
        blocks, counts = np.unique(samples[start : start + 50] // 10, return_counts=True)
        assert len(blocks) == 5
        assert (counts == 10).all()


def test_a_batch_of_ten_trillion_tokens_takes_milliseconds() -> None:
    order = Order(17, 10**13 // 1024, 1024, 64)
    order.at(0, 512)
    took = []
    for attempt in range(20):
        since = time.perf_counter()
        order.at(10**9 * attempt, 512)
        took.append(time.perf_counter() - since)
    assert min(took) < 0.2  # 2 ms measured on one core; by listing an epoch: minutes

    epochs, samples = Order(17, 10**13, 1024, 64).at(7 * 10**13 - 1, 2)
    assert epochs.tolist() == [6, 7]
    assert (samples >= 0).all()
    assert (samples < 10**13).all()


@pytest.mark.parametrize("section", [None, 2**20])
def test_a_batch_of_ten_trillion_tokens_takes_little_memory(section: int | None) -> None:
    order = Order(17, 10**13 // 1024, 1024, 64, section)
    tracemalloc.start()
    try:
        samples = order.at(123_456_789_012, 512)[1]
        window = order.window_at(123_456_789_012)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2**20  # 75 KB measured
    blocks = {(sample // 1024 * 1024, sample // 1024 * 1024 + 1024) for sample in samples.tolist()}
    assert blocks <= set(window.samples)


@settings(deadline=None, max_examples=100)
@given(size=st.integers(1, 10**13), key=st.integers(0, 2**64), data=st.data())
def test_a_permutation_stays_inside_and_can_be_undone(
    size: int, key: int, data: st.DataObject
) -> None:
    values = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    permutation = Permutation(size, "test", key)
    there = permutation.forward(values)
    assert there.min() >= 0
    assert there.max() < size
    assert np.array_equal(permutation.inverse(there), values)
