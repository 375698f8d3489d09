"""When losses are no accident any more, and who failed."""

from __future__ import annotations

import pytest

from headway.launch.units import MOST_LOSSES, SEEN_SECONDS, Losses, failed_facts


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


JOB = "Container worker for pod ml/it-2-x7k2p failed with exit code 1 matching FailJob rule"


@pytest.mark.parametrize(
    ("left", "local_rank", "how", "words"),
    [
        (
            "Traceback (most recent call last):\nKeyError: mine\n"
            "worker it-2-x7k2p.1/3 ended with exit code 1",
            3,
            "ended with exit code 1",
            "Traceback (most recent call last):\nKeyError: mine",
        ),
        (
            "worker it-2-x7k2p.1/3 ended with exit code 1 in silence",
            3,
            "ended with exit code 1 in silence",
            "ended with exit code 1 in silence",
        ),
        ("no folder\nhint: make it", 0, JOB, "no folder"),
        ("hint: make it", 0, JOB, JOB),
        (None, 0, JOB, JOB),
    ],
)
def test_a_pod_that_failed_tells_which_of_its_workers_did(
    left: str | None, local_rank: int, how: str, words: str
) -> None:
    """It is node 2 of machines with four devices each."""
    facts = failed_facts(2, left, JOB, ranks_per_node=4)
    assert facts == {
        "rank": 2 * 4 + local_rank,
        "node": 2,
        "local_rank": local_rank,
        "how": how,
        "words": words,
    }
