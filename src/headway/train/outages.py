"""A store that cannot be reached while a worker starts. Its launcher has reached it before, so it
is no mistake of the user: it is retried here for a while, and then by the next start, which the
launcher counts. A store that answers no is an error at once: no such bucket, no rights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from headway.clock import Clock
from headway.data.retry import SetUnreachable
from headway.errors import PeerLost, Stopped
from headway.state.run_directory import RunDirectory, StoreUnreachable
from headway.state.store import is_refusal

OPEN_SECONDS = 30.0
"""Deadline while the other workers wait for this one."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 5.0

Answer = TypeVar("Answer")


class StoreLost(PeerLost):
    """What this worker needs of the store cannot be had: its process ends, and its successor tries
    again."""


def reached(
    attempt: Callable[[], Answer], clock: Clock, is_stopped: Callable[[], bool] = lambda: False
) -> Answer:
    """The result of `attempt`, which opens a run directory. `is_stopped`: asked between two."""
    deadline, pause = clock.monotonic() + OPEN_SECONDS, FIRST_PAUSE_SECONDS
    while True:
        try:
            return attempt()
        except StoreUnreachable as error:
            if clock.monotonic() + pause > deadline:
                raise StoreLost(f"the store cannot be reached: {error.message}") from error
            if is_stopped():
                raise Stopped("stopped while the store could not be reached") from error
        clock.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


@contextmanager
def outage_is_loss() -> Iterator[None]:
    """For what has been retried for long enough, or is retried only by the next start."""
    try:
        yield
    except (StoreUnreachable, SetUnreachable) as error:
        raise StoreLost(f"the store cannot be reached: {error.message}") from error


@contextmanager
def outage_restarts(directory: RunDirectory) -> Iterator[None]:
    """For what a generation that has begun needs of a remote store."""
    try:
        yield
    except OSError as error:
        if directory.store.is_local or is_refusal(error):
            raise
        raise StoreLost(f"the store cannot be reached: {error}") from error
