"""The order looks like chance in every way that was looked at; `bench/order.py` looks at more.

Every key here is fixed, so a test that passes once passes always.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from headway.data.order import Order, Permutation
from support.statistics import (
    Broken,
    Permutations,
    Weakened,
    birthday_count,
    birthdays_p,
    chi_square_p,
    correlation_p,
    epochs,
    gamma_tail,
    ideal_probabilities,
    listed_p,
    neighbours_p,
    normal_p,
    permutations,
    poisson_p,
    positions_p,
    ranks_in_window,
    relative,
    row_of_blocks,
    serial_p,
)

pytestmark = pytest.mark.long("forty seconds; golden values of the order are in test_order.py")

LENGTHS = [1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 64, 65, 97, 256, 257, 1009, 1025]
DRAWS = 100_000
IMPROBABLE = 1e-4
"""About a hundred p-values are compared with it: chance alone would show one in a hundred runs."""
CAUGHT = 1e-9


# --- The tests themselves -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statistic", "freedom", "p_value"),
    [(3.841459, 1, 0.05), (6.634897, 1, 0.01), (18.307038, 10, 0.05), (29.588298, 10, 0.001)],
)
def test_the_tail_of_chi_square_is_that_of_the_tables(
    statistic: float, freedom: int, p_value: float
) -> None:
    assert chi_square_p(statistic, freedom) == pytest.approx(p_value, rel=1e-6)


@pytest.mark.parametrize("half_freedom", [1, 3, 20, 400])
@pytest.mark.parametrize("ratio", [0.1, 0.9, 1.0, 1.1, 3.0])
def test_the_tail_of_gamma_is_a_sum_where_the_shape_is_whole(
    half_freedom: int, ratio: float
) -> None:
    start = half_freedom * ratio
    terms = [
        math.exp(k * math.log(start) - start - math.lgamma(k + 1)) for k in range(half_freedom)
    ]
    assert gamma_tail(half_freedom, start) == pytest.approx(math.fsum(terms), rel=1e-9, abs=1e-13)


def test_the_other_tails_are_what_they_should_be() -> None:
    assert normal_p(-1.959964) == pytest.approx(0.05, rel=1e-6)
    assert normal_p(0) == 1
    assert poisson_p(0, 5.0) == pytest.approx(2 * math.exp(-5))
    assert poisson_p(3, 0.5) == pytest.approx(2 * (1 - math.exp(-0.5) * (1 + 0.5 + 0.125)))
    # Half of chi-square lies below its median, which is near freedom - 2/3; both sides count.
    assert chi_square_p(10**6 - 2 / 3, 10**6) == pytest.approx(1, abs=1e-3)
    deviation = math.sqrt(2 * 10**6)
    for side in (-1, 1):
        assert chi_square_p(10**6 + side * 5 * deviation, 10**6) == pytest.approx(5.7e-7, rel=0.1)


def shuffled(size: int, num_rows: int, generator: np.random.Generator) -> np.ndarray:
    return generator.permuted(np.tile(np.arange(size), (num_rows, 1)), axis=1)


@pytest.mark.parametrize(("size", "num_rows"), [(5, 400), (17, 200), (64, 150)])
def test_real_chance_gets_p_values_that_are_themselves_chance(size: int, num_rows: int) -> None:
    generator = np.random.Generator(np.random.PCG64(size))
    tables = [shuffled(size, num_rows, generator) for _ in range(200)]
    results = {
        "positions": [positions_p(table) for table in tables],
        "neighbours": [neighbours_p(table) for table in tables],
        "correlation": [correlation_p(*pair) for pair in itertools.pairwise(tables)],
        "relative": [positions_p(relative(*pair)) for pair in itertools.pairwise(tables)],
    }
    for name, values in results.items():
        # Of 200, 10 are expected below 0.05 and 100 below 0.5, with deviations of 3 and 7.
        assert sum(value < 0.05 for value in values) < 23, name
        assert 70 < sum(value < 0.5 for value in values) < 130, name
    # Corrected ones are rather too large, never too small.
    assert sum(serial_p(table, size) < 0.05 for table in tables) < 23


def test_real_chance_has_as_many_same_birthday_spacings_as_expected() -> None:
    generator = np.random.Generator(np.random.PCG64(1))
    for size, num_rows in ((2**16 + 1, 20_000), (10**9, 400)):
        table = generator.integers(0, size, (num_rows, birthday_count(size)))
        # No value comes twice in a row of an order.
        different = (np.diff(np.sort(table, axis=1), axis=1) > 0).all(axis=1)
        assert birthdays_p(table[different], size) > 0.01


def test_many_permutations_at_once_are_the_permutations() -> None:
    for size in (1, 2, 3, 7, 17, 100, 1025):
        keys = [(seed, epoch) for seed in range(3) for epoch in range(3)]
        table = Permutations(size, "test", keys).table(0, size)
        for row, key in zip(table, keys, strict=True):
            assert np.array_equal(row, Permutation(size, "test", *key).forward(np.arange(size)))


def test_a_weakened_permutation_is_caught() -> None:
    broken = permutations(64, 2000, kind=Broken)
    assert positions_p(broken) < CAUGHT
    assert serial_p(broken, 64) < CAUGHT
    assert neighbours_p(broken) < CAUGHT
    assert positions_p(relative(broken[::2], broken[1::2])) < CAUGHT

    # Two rounds: only pairs show it.
    assert serial_p(permutations(64, 20_000, kind=Weakened), 64) < CAUGHT
    size = 10**8
    count = birthday_count(size)
    assert birthdays_p(permutations(size, 300, count, Weakened), size) < CAUGHT


def test_an_order_that_forgets_its_epoch_is_caught() -> None:
    table = permutations(64, 500)
    assert positions_p(relative(table, table)) < CAUGHT
    # Or nearly: pairs of neighbours have changed places.
    assert correlation_p(table, table ^ 1) < CAUGHT


# --- One permutation ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", LENGTHS)
def test_the_permutation_looks_like_chance(size: int) -> None:
    table = permutations(size, min(DRAWS // size, 20_000))
    assert positions_p(table) > IMPROBABLE
    assert serial_p(table, size) > IMPROBABLE
    assert neighbours_p(table) > IMPROBABLE
    # Other keys are other seeds and other epochs.
    assert positions_p(relative(table[:-1], table[1:])) > IMPROBABLE


@pytest.mark.parametrize("size", [10**6 + 3, 2**32, 2**32 + 1, 10**13])
def test_the_permutation_of_many_values_looks_like_chance(size: int) -> None:
    count = min(birthday_count(size), 20_000) // 2 * 2
    table = permutations(size, 4 * DRAWS // count, count)
    assert birthdays_p(table, size) > IMPROBABLE
    # So few of so many values that pairs are independent wherever they stand.
    assert serial_p(table.reshape(-1, 2), size) > IMPROBABLE


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_every_order_of_a_few_samples_comes_equally_often(size: int) -> None:
    """Small domains are the hard case of a Feistel network: fewer rounds show here first."""
    orders = np.array(list(itertools.permutations(range(size))))
    digits = size ** np.arange(size)
    num_rows = 30_000
    codes, counts = np.unique(permutations(size, num_rows) @ digits, return_counts=True)
    assert np.array_equal(codes, np.sort(orders @ digits))
    expected = num_rows / len(orders)
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square_p(statistic, len(orders) - 1) > IMPROBABLE


def test_of_the_orders_of_seven_samples_a_fifth_are_odd_ones() -> None:
    """A known limit (docs/decisions.md): both digits have three values, all rounds are even."""
    table = permutations(7, 20_000)
    left, right = np.triu_indices(7, 1)
    inversions = (table[:, left] > table[:, right]).sum(axis=1)
    assert (inversions % 2).mean() == pytest.approx(0.21, abs=0.012)


# --- The order of two levels ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "window", "section"),
    [(1, 1, None), (16, 4, None), (7, 20, None), (1000, 1, None), (10, 8, 128), (5, 40, 97)],
)
def test_an_epoch_of_any_small_length_holds_every_sample_once(
    block: int, window: int, section: int | None
) -> None:
    for num_samples in range(1, 301):
        order = Order(num_samples, num_samples, block, window, section)
        samples = order.at(num_samples, num_samples)[1]
        assert (np.bincount(samples, minlength=num_samples) == 1).all(), num_samples


def test_a_permutation_of_any_small_length_holds_every_value_once() -> None:
    for size in range(1, 301):
        table = Permutations(size, "test", [(key,) for key in range(8)]).table(0, size)
        assert (np.sort(table, axis=1) == np.arange(size)).all(), size


@pytest.mark.parametrize("section", [None, 1024])
def test_blocks_and_the_samples_of_a_window_are_mixed_like_chance(section: int | None) -> None:
    orders = [Order(seed, 1024, 32, 16, section) for seed in range(100)]
    table = epochs(orders)
    blocks = row_of_blocks(table, 32)
    assert positions_p(blocks) > IMPROBABLE
    assert serial_p(blocks, 32) > IMPROBABLE
    assert neighbours_p(blocks) > IMPROBABLE
    ranks = np.stack([ranks_in_window(order, at, 512) for order in orders for at in (0, 512)])
    assert positions_p(ranks) > IMPROBABLE
    assert serial_p(ranks, 512) > IMPROBABLE
    assert neighbours_p(ranks) > IMPROBABLE


def test_the_samples_of_a_large_window_have_birthday_spacings_like_chance() -> None:
    count = birthday_count(2**26)
    orders = [Order(seed, 2**33, 2**20, 64) for seed in range(100)]
    table = np.stack([ranks_in_window(order, 0, count) for order in orders])
    assert birthdays_p(table, 2**26) > IMPROBABLE


@pytest.mark.parametrize(("num_samples", "block", "window"), [(20, 8, 2), (23, 10, 1)])
def test_with_a_short_last_block_every_sample_comes_as_often_as_it_should(
    num_samples: int, block: int, window: int
) -> None:
    draws = epochs(Order(seed, num_samples, block, window) for seed in range(460))
    chances = ideal_probabilities(Order(0, num_samples, block, window))
    assert chances.sum(axis=0) == pytest.approx(1)
    assert chances.sum(axis=1) == pytest.approx(1)
    assert listed_p(draws, chances) > IMPROBABLE
    # The test can tell: the last samples are not as likely everywhere as the others.
    assert listed_p(draws, np.full_like(chances, 1 / num_samples)) < IMPROBABLE


def test_epochs_seeds_and_sections_are_unrelated() -> None:
    orders = [Order(seed, 512, 16, 16, samples_per_section=256) for seed in range(150)]
    first, second = epochs(orders), epochs(orders, epoch=1)
    left, right = first[:, :256], first[:, 256:] - 256
    pairs = {
        "epochs": (left, second[:, :256]),
        "seeds": (left[:-1], left[1:]),
        "sections": (left, right),
    }
    for name, (one, other) in pairs.items():
        assert positions_p(relative(one, other)) > IMPROBABLE, name
        assert serial_p(relative(one, other), 256) > IMPROBABLE, name
        assert correlation_p(one, other) > IMPROBABLE, name


def test_epochs_and_seeds_are_unrelated_over_several_windows() -> None:
    orders = [Order(seed, 1024, 32, 16) for seed in range(120)]
    first, second = epochs(orders), epochs(orders, epoch=1)
    assert correlation_p(first, second) > IMPROBABLE
    assert correlation_p(first[:-1], first[1:]) > IMPROBABLE
