"""The rule by which `make bench-faults` judges every system alike."""

from __future__ import annotations

import pytest

from support.fault_judge import (
    Interval,
    Trained,
    counted,
    goodput,
    intervals,
    judge_samples,
    lost_seconds,
    next_steps,
    redone_steps,
    usual_seconds,
)

PARTS, EACH = 2, 2
NUM_SAMPLES = 8
"""Two steps of four are an epoch."""


def step(number: int, time: float, generation: int = 1, parts: int = PARTS) -> list[Trained]:
    """One step of the order 0, 1, 2, ... by so many of two parts."""
    lines = []
    for part in range(parts):
        first = (number - 1) * PARTS * EACH + part * EACH
        samples = tuple(divmod(first + one, NUM_SAMPLES) for one in range(EACH))
        lines.append(Trained(time, number, generation, part, samples))
    return lines


def steps(*numbers: int) -> list[Trained]:
    return [line for number in numbers for line in step(number, float(number))]


def alike(end: float) -> list[Interval]:
    """All of the time, in which a step takes a second."""
    return [Interval(0.0, end, 1.0)]


def test_an_undisturbed_run_has_all_its_time_and_every_sample_once() -> None:
    lines = steps(1, 2, 3, 4, 5)
    assert usual_seconds(lines) == 1.0
    assert goodput(lines, alike(5.0), 4) == 1.0
    found = judge_samples(lines, NUM_SAMPLES)
    assert (found.trained, found.finished_epochs, found.are_exact) == (20, 2, True)


def test_steps_that_are_redone_count_once_and_their_time_is_lost() -> None:
    lines = [*steps(1, 2, 3), *step(2, 8.0, 2), *step(3, 9.0, 2), *step(4, 10.0, 2)]
    assert [line.time for line in counted(lines) if line.part == 0] == [1.0, 8.0, 9.0, 10.0]
    assert goodput(lines, alike(10.0), 4) == pytest.approx(0.4)
    assert judge_samples(lines, NUM_SAMPLES).are_exact
    assert redone_steps(lines) == 2


def test_a_smaller_batch_counts_for_what_was_in_it() -> None:
    lines = [*step(1, 1.0), *step(2, 2.0, parts=1)]
    assert goodput(lines, alike(2.0), 4) == 0.75


def test_a_part_that_was_away_and_never_trained_its_samples_has_lost_them() -> None:
    lines = [*step(1, 1.0), *step(2, 2.0, parts=1), *steps(3, 4, 5)]
    found = judge_samples(lines, NUM_SAMPLES)
    assert (found.lost, found.repeated) == (2, 0)


def test_samples_of_an_epoch_that_a_part_is_still_in_are_not_lost_yet() -> None:
    lines = [*step(1, 1.0), *step(2, 2.0, parts=1), *step(3, 3.0, parts=1)]
    assert judge_samples(lines, NUM_SAMPLES).are_exact


def test_samples_of_another_step_that_come_again_in_an_epoch_are_repeated() -> None:
    again = [line._replace(step=2) for line in step(1, 2.0)]
    assert judge_samples([*step(1, 1.0), *again], NUM_SAMPLES).repeated == 4


def test_the_next_step_is_the_first_one_after_the_workers_have_changed() -> None:
    lines = [*steps(1, 2), *step(3, 3.0), *step(4, 7.0, 2), *step(5, 8.0, 2)]
    assert next_steps(lines, [2.5, 9.0]) == [4.5, None]


def test_time_is_lost_where_workers_change_or_elsewhere() -> None:
    lines = [*steps(1, 2), *step(3, 3.5), *step(4, 7.0, 2), *step(5, 8.0, 2)]
    assert lost_seconds(lines, alike(9.0)) == {"changes": 2.5, "elsewhere": 0.5}


def test_a_machine_that_is_slower_for_a_while_is_not_the_systems_fault() -> None:
    """A fault at 30 costs six seconds; then all steps take two seconds instead of one, until the
    next fault at 120, which costs nothing."""
    lines = [line for number in range(1, 31) for line in step(number, float(number))]
    lines += [line for one in range(42) for line in step(31 + one, 36.0 + 2 * (one + 1), 2)]
    lines += [line for one in range(9) for line in step(73 + one, 121.0 + one, 3)]
    times = intervals(lines, [30.0, 120.0], 0.0, 129.0, calm=(1.0, 1.0))
    assert [one.usual for one in times] == [1.0, 2.0, 1.0]
    assert goodput(lines, times, 4) == pytest.approx((30 + 2 * 42 + 9) / 129)
    assert lost_seconds(lines, times) == {"changes": 6.0, "elsewhere": 0.0}


@pytest.mark.parametrize("last", [[], step(5, 29.0, 2), [*step(5, 28.0), *step(6, 29.0, 2)]])
def test_where_a_fault_is_not_over_before_the_next_the_calm_time_counts(
    last: list[Trained],
) -> None:
    times = intervals([*steps(1, 2, 3, 4), *last], [1.0, 30.0], 0.0, 31.0, calm=(0.6, 0.8))
    assert [one.usual for one in times] == [0.6, pytest.approx(0.7), 0.8]
