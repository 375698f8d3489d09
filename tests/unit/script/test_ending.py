"""The table of docs/design/scripts.md, row by row."""

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
    exit_code: int, age: float, is_first_start: bool
) -> None:
    code = failed_code(exit_code, age, is_first_start, "")
    if code == Exit.RUN_FAILED:
        assert is_first_start
        assert age < FIRST_SECONDS
    else:
        assert code == (exit_code if exit_code < 0 else Exit.PEER_LOST)
    assert code != 0


def test_a_mistake_in_the_first_minute_fails_the_run() -> None:
    words = "NameError: name 'lost' is not defined"
    assert failed_code(1, 10.0, is_first_start=True, words=words) == Exit.RUN_FAILED
    assert failed_code(1, 10.0, is_first_start=False, words=words) == Exit.PEER_LOST
    assert failed_code(1, 61.0, is_first_start=True, words=words) == Exit.PEER_LOST


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
    assert failed_code(1, 10.0, is_first_start=True, words=words) == Exit.PEER_LOST


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
