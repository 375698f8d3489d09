"""How a worker exited, what it said last, and which one failed the run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from headway.errors import without_hint
from headway.launch.worker_exit import describe_exit, failed_facts, last_words

FIRST = "Traceback (most recent call last):\n  File a\nKeyError: 'first'\n"
SECOND = "Traceback (most recent call last):\n  File b\nValueError: second\n"
PROGRESS = "2026-11-15T01:37:52.123Z step 3/10  loss 2.0000  1,234 tokens/s"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (1, "ended with exit code 1"),
        (7, "ended with exit code 7"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-signal.SIGKILL, "was killed by SIGKILL (probably out of memory)"),
        (-40, "was killed by signal 40"),  # one that has no name
    ],
)
def test_how_a_worker_ended(code: int, says: str) -> None:
    assert describe_exit(code) == says


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (FIRST + "\nDuring handling of the above exception:\n\n" + SECOND, SECOND.rstrip()),
        ("step 1\n" + FIRST, FIRST.rstrip()),
        # As torch prints it once workers have met.
        ("".join(f"[rank1]: {line}\n" for line in SECOND.splitlines()), SECOND.rstrip()),
        ("a\nb\nc\nd\ne\nBadInput: no such file\nhint: look\n", None),
        ("", ""),
        ("\n\n", ""),
    ],
)
def test_last_words(tmp_path: Path, log: str, words: str | None) -> None:
    (tmp_path / "log").write_text(log)
    expected = words if words is not None else "c\nd\ne\nBadInput: no such file\nhint: look"
    assert last_words(tmp_path / "log") == expected


def test_last_words_of_a_long_or_broken_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(SECOND.replace("  File b\n", "  File b\n" * 500))
    assert last_words(log).count("\n") == 39
    assert last_words(log).endswith("ValueError: second")
    log.write_bytes(b"\xff\xfe broken\n")
    assert "broken" in last_words(log)
    assert last_words(tmp_path / "nowhere") == ""


def test_a_progress_line_is_not_an_error(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"terminate called\n{PROGRESS}\n")
    assert last_words(log) == "terminate called"
    log.write_text(f"{PROGRESS}\n")
    assert last_words(log) == ""


def test_last_words_are_of_this_start(tmp_path: Path) -> None:
    """Logs go on over restarts: yesterday's traceback is not why it was killed today."""
    log = tmp_path / "log"
    log.write_text(FIRST)
    start = log.stat().st_size
    with log.open("a") as file:
        file.write("step 1\n")
    assert last_words(log, start) == "step 1"


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
            "worker it-2-x7k2p.1/3 ended with exit code 1 and left no message",
            3,
            "ended with exit code 1 and left no message",
            "ended with exit code 1 and left no message",
        ),
        ("no folder\nhint: make it", 0, JOB, "no folder"),
        ("hint: make it", 0, JOB, JOB),
        (None, 0, JOB, JOB),
    ],
)
def test_a_failed_pod_says_which_of_its_workers_failed(
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
        "message": without_hint(left or "")[0] or JOB,
        "hint": "make it" if left and "hint" in left else None,
    }
