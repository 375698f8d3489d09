"""When losses are no accident any more."""

from __future__ import annotations

from headway.launch.units import MOST_LOSSES, SEEN_SECONDS, Losses


def test_a_new_step_begins_the_count_anew() -> None:
    losses = Losses()
    assert [losses.add(step, 0.0) for step in (0, 0, 5, 5, 5, 6)] == [1, 2, 1, 2, 3, 1]


def test_a_step_that_is_seen_again_after_a_rewind_is_no_new_one() -> None:
    losses = Losses()
    assert [losses.add(step, 0.0) for step in (9, 4, 9)] == [1, 2, 3]


def test_many_at_once_are_no_reason_to_give_up_where_steps_are_seen_late() -> None:
    losses = Losses()
    for _ in range(MOST_LOSSES + 5):
        losses.add(7, 10.0)
    assert not losses.are_too_many(10.0)
    assert losses.are_too_many(11.0 + SEEN_SECONDS)


def test_few_are_none_after_any_time() -> None:
    losses = Losses()
    for hour in range(MOST_LOSSES - 1):
        losses.add(7, 3600.0 * hour)
    assert not losses.are_too_many(1e6)
