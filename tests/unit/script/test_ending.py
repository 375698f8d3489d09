"""The table of headway/script/ending.py, row by row."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as some

from headway.errors import Exit
from headway.script.ending import (
    FIRST_SECONDS,
    GRACE_SECONDS,
    LOST_GRACE_SECONDS,
    Blame,
    GenerationState,
    blame,
    decision_seconds,
    ended_code,
    failed_code,
    grace_seconds,
    is_cut_short,
    is_untried,
)

STATES = some.sampled_from(GenerationState)
EXITS = some.one_of(some.integers(1, 255), some.sampled_from([-int(one) for one in signal.Signals]))


@pytest.mark.parametrize(
    ("is_asked", "state", "grace", "code"),
    [
        (False, GenerationState.CURRENT, None, None),
        (True, GenerationState.CURRENT, GRACE_SECONDS, Exit.STOPPED),
        (False, GenerationState.SOUND, GRACE_SECONDS, Exit.GENERATION_OVER),
        (True, GenerationState.SOUND, GRACE_SECONDS, Exit.STOPPED),
        (False, GenerationState.LOST, LOST_GRACE_SECONDS, Exit.GENERATION_OVER),
        (True, GenerationState.LOST, LOST_GRACE_SECONDS, Exit.GENERATION_OVER),
    ],
)
def test_the_table(
    is_asked: bool, state: GenerationState, grace: float | None, code: Exit | None
) -> None:
    assert grace_seconds(is_asked, state) == grace
    assert ended_code(is_asked, state) == code


@given(some.booleans(), STATES)
def test_a_script_that_is_asked_to_end_never_fails_the_run_however_it_ends(
    is_asked: bool, state: GenerationState
) -> None:
    is_asked_to_end = grace_seconds(is_asked, state) is not None
    assert is_asked_to_end == (ended_code(is_asked, state) is not None)
    assert ended_code(is_asked, state) in (None, Exit.STOPPED, Exit.GENERATION_OVER)


@given(EXITS, some.floats(0, 1e9), some.booleans())
def test_only_an_error_in_the_first_minute_of_a_start_fails_the_run_at_once(
    exit_code: int, age: float, is_untried: bool
) -> None:
    code = failed_code(exit_code, age, is_untried, "")
    if code == Exit.RUN_FAILED:
        assert is_untried
        assert age < FIRST_SECONDS
    else:
        assert code == (exit_code if exit_code < 0 else Exit.PEER_LOST)
    assert code != 0


def test_a_mistake_in_the_first_minute_fails_the_run() -> None:
    words = "NameError: name 'lost' is not defined"
    assert failed_code(1, 10.0, is_untried=True, words=words) == Exit.RUN_FAILED
    assert failed_code(1, 10.0, is_untried=False, words=words) == Exit.PEER_LOST
    assert failed_code(1, 61.0, is_untried=True, words=words) == Exit.PEER_LOST


def test_only_a_planned_change_in_the_first_minute_leaves_the_script_untried() -> None:
    assert is_cut_short(GenerationState.SOUND, 10.0, has_begun=False)
    assert not is_cut_short(GenerationState.LOST, 10.0, has_begun=False)
    assert not is_cut_short(GenerationState.SOUND, 61.0, has_begun=False)
    assert not is_cut_short(GenerationState.SOUND, 10.0, has_begun=True)


@pytest.mark.parametrize(
    ("begun", "cut_short", "is_so"),
    [
        ([], [], True),
        ([1, 2], [1, 2], True),
        ([1, 2], [1], False),
        ([1, 2], [2], False),
        ([1, 2, 7], [7], False),
        ([1, 2, 7, 8], [8, 7], False),
    ],
)
def test_a_start_that_worked_failed_or_lost_a_member_is_remembered(
    begun: list[int], cut_short: list[int], is_so: bool
) -> None:
    assert is_untried(1, begun, cut_short) is is_so


def test_starts_before_the_launch_do_not_count() -> None:
    assert is_untried(7, [1, 2], [])
    assert is_untried(7, [1, 2, 7], [7])
    assert not is_untried(7, [1, 2, 7], [2])


@pytest.mark.parametrize(
    "words",
    [
        "DistNetworkError: The server socket has failed to listen: EADDRINUSE",
        "OSError: [Errno 98] Address already in use",
        "RuntimeError: Connection refused",
    ],
)
def test_ranks_that_could_not_meet_start_again_even_in_the_first_minute(words: str) -> None:
    """The port was taken meanwhile, or a machine was lost that nobody knew to be."""
    assert failed_code(1, 10.0, is_untried=True, words=words) == Exit.PEER_LOST


@given(EXITS)
def test_only_what_a_lost_peer_can_cause_is_waited_for(exit_code: int) -> None:
    is_long = decision_seconds(exit_code) > 0
    assert is_long == (exit_code > 0 or exit_code == -signal.SIGABRT)


@pytest.mark.parametrize(
    ("exit_code", "words", "expected"),
    [
        (1, "ValueError: a bad sample", Blame.OWN),
        (-signal.SIGSEGV, "", Blame.OWN),
        (-signal.SIGABRT, "terminate called", Blame.ABORTED),
        (1, "torch.distributed.DistNetworkError: Connection reset by peer", Blame.FOLLOWS),
        (-signal.SIGABRT, "Watchdog caught collective operation timeout", Blame.FOLLOWS),
    ],
)
def test_who_explains_the_others(exit_code: int, words: str, expected: Blame) -> None:
    assert blame(exit_code, words) is expected
