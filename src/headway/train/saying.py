"""A worker's own words: what it prints is its log."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

MOST_BYTES = 32768
"""Less than a pipe holds: nobody reads it before this process has ended."""
launcher: int | None = None
"""Where a worker's last words go, of those that a warm parent forks."""


def say(words: str) -> None:
    with suppress(OSError):  # the log can be on a disk that is full
        print(words, file=sys.stderr, flush=True)


def say_last(words: str) -> None:
    """Why this process ends: in its log, and to its launcher, should the log not take it."""
    say(words)
    if launcher is not None:
        with suppress(OSError):
            os.write(launcher, words.encode(errors="replace")[-MOST_BYTES:])
