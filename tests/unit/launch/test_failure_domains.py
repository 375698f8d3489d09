"""When losses are no accident any more."""

from __future__ import annotations

from itertools import cycle, islice

from headway.launch.failure_domains import (
    MOST_ELSEWHERE,
    MOST_FRUITLESS,
    MOST_LOSSES,
    MOST_UNSAVED,
    OUTAGE_SECONDS,
    SEEN_SECONDS,
    FruitlessStarts,
    Losses,
    Outage,
    StepsTaken,
)


def test_a_new_step_resets_the_count() -> None:
    losses = Losses()
    assert [losses.add(step, 0.0) for step in (0, 0, 5, 5, 5, 6)] == [1, 2, 1, 2, 3, 1]


def test_a_step_that_is_seen_again_after_a_rewind_is_not_new() -> None:
    losses = Losses()
    assert [losses.add(step, 0.0) for step in (9, 4, 9)] == [1, 2, 3]


def test_many_losses_at_once_do_not_end_a_run_whose_steps_are_seen_late() -> None:
    losses = Losses()
    for _ in range(MOST_LOSSES + 5):
        losses.add(7, 10.0)
    assert not losses.are_too_many(10.0)
    assert losses.are_too_many(11.0 + SEEN_SECONDS)


def test_a_few_losses_never_end_a_run() -> None:
    losses = Losses()
    for hour in range(MOST_LOSSES - 1):
        losses.add(7, 3600.0 * hour)
    assert not losses.are_too_many(1e6)


def test_losses_elsewhere_are_no_failure_in_a_row_where_each_goes_back_to_a_checkpoint() -> None:
    """Ten machines may be lost before the run is past the step that it had reached once."""
    losses = Losses()
    lost_at = [100, 30, 60, 25, 70]
    taken = [StepsTaken(20, step) for step in lost_at]
    assert [losses.add_rewound(each, (0, 0), 0.0) for each in taken] == [1] * 5


def test_a_failure_at_the_same_step_or_before_the_first_ends_a_run_all_the_same() -> None:
    losses = Losses()
    taken = [StepsTaken(20, step) for step in (50, 49, 50)]
    assert [losses.add_rewound(each, (0, 0), 0.0) for each in taken] == [1, 2, 3]
    losses = Losses(count=1, step=100)
    early = [StepsTaken(10, 20), None, StepsTaken(20, 20)]
    assert [losses.add_rewound(each, (0, 0), 0.0) for each in early] == [1, 2, 3]


def counts(*steps: int, every: int = 1000) -> list[int]:
    """Of losses that each go back to a checkpoint, with one every so many steps."""
    losses, counted, highest = Losses(), [], 0
    for step in steps:
        taken = StepsTaken(highest, step)
        highest = max(highest, step - step % every)
        counted.append(losses.add_rewound(taken, (1, highest), 0.0))
    return counted


def test_a_failure_that_repeats_below_the_highest_step_ends_a_run() -> None:
    """The first loss was an accident; what follows it is not."""
    assert counts(140, 103, 103, 104) == [1, 1, 2, 3]


def test_losses_at_changing_steps_end_a_run_in_the_end() -> None:
    """As by a leak of memory, which ends a worker some time after each restart."""
    seen = counts(140, *islice(cycle([137, 120, 130]), MOST_ELSEWHERE + 2))
    assert seen[: MOST_ELSEWHERE + 1] == [1] * (MOST_ELSEWHERE + 1)
    assert seen[-1] == MOST_LOSSES
    new = counts(*(100 * n + step for n in range(5) for step in (90, 20, 50, 70)), every=100)
    assert set(new) == {1}, "a new checkpoint begins anew"


def test_a_run_that_crashes_a_step_later_each_time_and_never_saves_is_ended() -> None:
    assert counts(140, 141, 142) == [1, 2, 3]
    ever_later = counts(*range(140, 400, 10))
    assert ever_later.index(MOST_LOSSES) == MOST_ELSEWHERE + MOST_LOSSES - 1
    assert counts(*range(140, 400, 10), every=10) == [1] * 26, "each time it has saved more"
    assert counts(*range(140, 150), every=1) == [1] * 10


def test_what_is_said_of_losses() -> None:
    losses = Losses()
    for _ in range(3):
        losses.add_rewound(StepsTaken(7, 7), (1, 7), 0.0)
    assert str(losses) == "3 times in a row without a new step"
    losses.add_rewound(StepsTaken(7, 12), (1, 7), 0.0)
    assert str(losses) == "4 times in a row without a new checkpoint"


def test_generations_that_end_after_a_save_never_end_a_run() -> None:
    """Nodes come and go."""
    starts = FruitlessStarts()
    for number in range(3 * MOST_UNSAVED):
        starts.add(True, (number, 7), 1000.0 * number)
        assert not starts.are_too_many(1000.0 * number)
    saved = (3 * MOST_UNSAVED, 7)
    for number in range(MOST_FRUITLESS):
        assert not starts.are_too_many(1e6 + number)
        starts.add(False, saved, 1e6 + number)
    assert not starts.are_too_many(1e6 + SEEN_SECONDS), "a step may be seen late"
    assert starts.are_too_many(1e6 + SEEN_SECONDS + 1)
    assert str(starts) == f"{MOST_FRUITLESS} times in a row without a step"


def test_generations_that_always_end_before_a_save_end_a_run() -> None:
    """As when a worker stalls some steps after each start."""
    starts = FruitlessStarts()
    for number in range(MOST_UNSAVED + 1):
        assert not starts.are_too_many(60.0 * number)
        starts.add(True, (1, 5), 60.0 * number)
    assert starts.are_too_many(60.0 * number)
    assert str(starts) == f"{MOST_UNSAVED} times in a row without a new checkpoint"


def test_an_outage_is_waited_out_but_not_for_ever() -> None:
    outage = Outage()
    for second in range(100):
        outage.add(50.0 + second)
        assert not outage.is_too_long(50.0 + second)
    assert not outage.is_too_long(50.0 + OUTAGE_SECONDS)
    assert outage.is_too_long(51.0 + OUTAGE_SECONDS)
    rare = Outage()
    rare.add(0.0)
    rare.add(1e6)
    assert not rare.is_too_long(1e6), "twice is an accident"
    rare.add(2e6)
    assert not rare.is_too_long(2e6), "three outages, hours apart"
