"""A worker's own words: what it prints is its log."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(words: str) -> None:
    with suppress(OSError):  # the log can be on a disk that is full
        print(words, file=sys.stderr, flush=True)
