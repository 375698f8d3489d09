"""Waiting with a deadline, and with words for what was waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from support.stolen_time import Deadline

Found = TypeVar("Found")


def wait_for(what: str, look: Callable[[], Found | None], seconds: float = 60.0) -> Found:
    """The first truthy answer of `look`."""
    deadline = Deadline(seconds)
    while True:
        found = look()
        if found:
            return found
        assert not deadline.has_passed, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.05)


async def until(look: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = Deadline(seconds)
    while not look():
        assert not deadline.has_passed, f"waited {seconds:.0f} s for {what}"
        await asyncio.sleep(0.01)
