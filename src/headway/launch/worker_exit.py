"""How a worker exited, and why: exit codes, signals, the last words in its log."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

from headway.errors import Exit, traceback_lines, without_hint
from headway.member.protocol.identity import parse

PROGRESS = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z ")
"""Progress lines of workers start with the time."""
LOSSES = (Exit.PEER_LOST, Exit.GENERATION_OVER, Exit.DEVICE_LOST)
"""Exit codes of workers that can be restarted."""
EXIT_LINE = re.compile(r"worker (\S+/\d+) (.+)")
"""Last line of a pod's termination message when one of its workers failed the run."""
MOST_LINES = 40
"""Maximum length of a traceback that is shown, in lines."""


def is_loss(exit_code: int | None) -> bool:
    """Whether a signal, the loss of a peer or of its device, or the end of its generation ended it:
    it can be restarted."""
    return exit_code is not None and (exit_code < 0 or exit_code in LOSSES)


def is_failure(exit_code: int | None) -> bool:
    """Whether an error of its own ended it."""
    return exit_code is not None and exit_code > 0 and exit_code not in (Exit.STOPPED, *LOSSES)


def blame(exit_code: int | None) -> int:
    """Higher is more to blame: a worker that lost a peer only follows another one's exit."""
    if is_failure(exit_code):
        return 3
    if exit_code == Exit.DEVICE_LOST:
        return 2
    return 0 if exit_code in (Exit.PEER_LOST, Exit.GENERATION_OVER) else 1


def describe_exit(exit_code: int, out_of_memory: bool | None = None) -> str:
    if exit_code == Exit.DEVICE_LOST:
        return "lost its device"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    if out_of_memory:
        return "was killed by the kernel: out of memory"
    known = -exit_code in {int(number) for number in signal.Signals}
    name = signal.Signals(-exit_code).name if known else f"signal {-exit_code}"
    is_open = name == "SIGKILL" and out_of_memory is None
    hint = " (probably out of memory)" if is_open else ""
    return f"was killed by {name}{hint}"


def exit_message(worker: str | int, how: str, last_words: str) -> str:
    """For people; `failed_facts` reads it as well, from a pod's termination message."""
    return (
        f"{last_words}\nworker {worker} {how}"
        if last_words
        else f"worker {worker} {how} and left no message"
    )


def failed_facts(node: int, message: str | None, why: str, ranks_per_node: int) -> dict[str, Any]:
    """Fields of the event `failed`, from a pod's termination message and the reason Kubernetes
    gives."""
    left, hint = without_hint((message or "").strip())
    lines = (left or why).splitlines()
    local_rank, how = 0, why
    if found := EXIT_LINE.fullmatch(lines[-1]):
        local_rank, how = parse(found[1]).local_rank, found[2]
        lines = lines[:-1] or [how]
    return {
        "rank": node * ranks_per_node + local_rank,
        "node": node,
        "local_rank": local_rank,
        "how": how,
        "words": "\n".join(lines),
        "message": left or why,
        "hint": hint,
    }


def exit_cause(reported: str, log: Path, log_start: int) -> tuple[str, str | None]:
    """Why a worker exited, and its hint: what it reported, else the end of its log."""
    words, hint = without_hint(reported)
    return from_traceback(words) or words or last_words(log, log_start), hint


def last_words(log: Path, start: int = 0) -> str:
    """The last traceback in a worker's log after byte `start`, else the last lines that are not
    progress."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            text = file.read().decode("utf-8", errors="replace").rstrip()
    except OSError:  # not there, or on a network file system that fails
        return ""
    others = [line for line in text.splitlines() if not PROGRESS.match(line)]
    return from_traceback(text) or "\n".join(others[-5:])


def from_traceback(text: str) -> str:
    """The text from its last traceback on; empty if there is none."""
    return "\n".join(traceback_lines(text)[-MOST_LINES:])
