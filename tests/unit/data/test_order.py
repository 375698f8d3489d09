"""A run sees every sample once an epoch, in an order that never changes under its feet."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data.order import Order, Permutation

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


@settings(deadline=None, max_examples=60)
@given(
    num_samples=st.integers(1, 200),
    first=st.integers(0, 2000),
    count=st.integers(0, 300),
    cut=st.integers(0, 300),
)
def test_a_batch_does_not_depend_on_how_it_is_divided(
    num_samples: int, first: int, count: int, cut: int
) -> None:
    order = Order(5, num_samples, 4, 3)
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
    for attempt in range(5):
        since = time.perf_counter()
        order.at(10**9 * attempt, 512)
        took.append(time.perf_counter() - since)
    assert min(took) < 0.02  # 2 ms measured on one core

    epochs, samples = Order(17, 10**13, 1024, 64).at(7 * 10**13 - 1, 2)
    assert epochs.tolist() == [6, 7]
    assert (samples >= 0).all()
    assert (samples < 10**13).all()


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


def deviations(counts: np.ndarray, expected: float, freedom: int) -> float:
    """How many standard deviations chi-square lies above what chance gives."""
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return (chi_square - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("size", [2, 3, 5, 7, 12, 17])
def test_over_many_keys_every_sample_comes_to_every_position_equally_often(size: int) -> None:
    num_keys = 1000
    places = np.zeros((size, size))
    pairs = np.zeros((size, size))
    for key in range(num_keys):
        values = Permutation(size, "test", key).forward(np.arange(size))
        places[np.arange(size), values] += 1
        pairs[values[0], values[1]] += 1
    # Rows and columns of `places` both have fixed sums: (n-1)^2 degrees, and a scale of n/(n-1).
    scaled = places * math.sqrt((size - 1) / size)
    expected = num_keys / size * math.sqrt((size - 1) / size)
    chi_square = float(((scaled - expected) ** 2).sum() / (num_keys / size))
    freedom = (size - 1) ** 2
    assert (chi_square - freedom) / math.sqrt(2 * freedom) < 5
    # What comes second does not depend on what came first.
    different = pairs[~np.eye(size, dtype=bool)]
    assert deviations(different, num_keys / different.size, max(1, different.size - 1)) < 5


def test_over_many_keys_every_order_of_five_samples_comes_equally_often() -> None:
    """Small domains are the hard case of a Feistel network: fewer rounds show here first."""
    orders = {order: place for place, order in enumerate(itertools.permutations(range(5)))}
    counts = np.zeros(len(orders))
    for key in range(3000):
        values = Permutation(5, "test", key).forward(np.arange(5))
        counts[orders[tuple(values.tolist())]] += 1
    assert deviations(counts, 3000 / len(orders), len(orders) - 1) < 4


@pytest.mark.parametrize(("block", "window"), [(1, 1), (16, 8), (100_000, 1)])
def test_neighbours_in_the_order_are_not_neighbours_in_the_data(block: int, window: int) -> None:
    num_samples = 20_000
    samples = epoch_samples(Order(4, num_samples, block, window), 0)
    if block == 16:
        # Only inside a window are neighbours mixed; between blocks the data's order must be gone.
        starts = samples[:: block * window]
        assert abs(np.corrcoef(starts[:-1], starts[1:])[0, 1]) < 0.4
        steps = np.diff(samples)
        assert (steps == 1).mean() < 3 / (block * window) + 0.01
        return
    # For independent values the correlation's standard deviation is 1 / sqrt(n) = 0.007.
    for lag in (1, 2, 3, 64):
        assert abs(np.corrcoef(samples[:-lag], samples[lag:])[0, 1]) < 0.035
    assert abs(np.corrcoef(samples, np.arange(num_samples))[0, 1]) < 0.035
    assert (np.diff(samples) == 1).sum() < 10


def test_two_epochs_are_not_related() -> None:
    order = Order(4, 20_000, 1, 1)
    one, other = epoch_samples(order, 0), epoch_samples(order, 1)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.035
