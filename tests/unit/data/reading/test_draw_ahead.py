"""Drawn ahead or not, an order says the same."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data.order import Order
from headway.data.reading.draw_ahead import MOST_POSITIONS, DrawAheadOrder

ORDER = Order(seed=3, num_samples=700, samples_per_block=64, window_blocks=4)


class Counted:
    """Notes what is drawn."""

    def __init__(self) -> None:
        self.drawn: list[tuple[int, int]] = []

    def at(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        self.drawn.append((first, count))
        return ORDER.at(first, count)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 600)), min_size=1, max_size=8))
def test_it_says_what_the_order_says(asked: list[tuple[int, int]]) -> None:
    ahead = DrawAheadOrder(ORDER)
    for first, count in asked:
        for found, expected in zip(ahead.at(first, count), ORDER.at(first, count), strict=True):
            assert found.tolist() == expected.tolist()


def test_small_batches_are_drawn_many_at_a_time() -> None:
    order = Counted()
    ahead = DrawAheadOrder(order)
    for step in range(500):
        ahead.at(4 * step, 4)
    assert len(order.drawn) <= 500 * 4 / MOST_POSITIONS + 7
    assert order.drawn[-1][1] == MOST_POSITIONS


def test_one_who_jumps_about_gets_what_was_asked_for() -> None:
    order = Counted()
    ahead = DrawAheadOrder(order)
    for first in (900, 40, 1800, 7):
        ahead.at(first, 4)
    assert order.drawn == [(900, 4), (40, 4), (1800, 4), (7, 4)]
