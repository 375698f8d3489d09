"""Retries reads from a store that is unavailable for a while, up to a deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headway.clock import Clock
from headway.errors import BadInput, RunFailed
from headway.state.store import Store, is_refusal

OPEN_SECONDS = 30.0
"""Deadline while a person waits for a set to open."""
READ_SECONDS = 300.0
"""Deadline while training waits for tokens. Other workers then wait in a collective, for at most
600 s: this worker must fail first, since it knows the reason."""
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
NAP_SECONDS = 0.1
"""Pauses are slept in short naps, so that closing a set does not wait for one to end."""

Answer = TypeVar("Answer")


class SetUnreachable(RunFailed):
    """The store of a set was tried until the deadline."""


def with_retries(
    store: Store,
    name: str,
    attempt: Callable[[], Answer],
    clock: Clock,
    seconds: float,
    is_closed: Callable[[], bool] = lambda: False,
) -> Answer:
    """The result of `attempt`, which reads `name` from the store and is retried on OSError. Reads
    from a local disk are not retried: they would fail again."""
    what = store.location(name)
    began = clock.monotonic()
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return attempt()
        except OSError as error:
            if store.is_local or is_final(error):
                raise BadInput(
                    f"{what} cannot be read: {error or type(error).__name__}",
                    None if store.is_local else "check the address, credentials and endpoint",
                ) from error
            waited = clock.monotonic() - began
            if waited + pause > seconds or is_closed():
                raise SetUnreachable(
                    f"{what} could not be read for {waited:.0f} s: {error}",
                    "check that the store is available, then run the same command to resume",
                ) from error
        _pause(pause, clock, is_closed)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def is_final(error: OSError) -> bool:
    """Whether a retry would fail the same way."""
    # botocore's NoCredentialsError and kin
    return is_refusal(error) or "Credentials" in type(error.__cause__).__name__


def _pause(seconds: float, clock: Clock, is_closed: Callable[[], bool]) -> None:
    until = clock.monotonic() + seconds
    while (left := until - clock.monotonic()) > 0 and not is_closed():
        clock.sleep(min(NAP_SECONDS, left))
