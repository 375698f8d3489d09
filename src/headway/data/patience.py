"""Reading from a store that may be away for a while: tried again, up to a deadline, with a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headway.clock import Clock
from headway.errors import BadInput, RunFailed
from headway.state.store import Store

OPEN_SECONDS = 30.0
"""While a person waits for a set to open."""
READ_SECONDS = 300.0
"""While training waits for tokens. Other workers wait meanwhile in a collective, for 600 s at most,
and the reason must come from the one that knows it."""
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
NAP_SECONDS = 0.1
"""Pauses are slept in naps, so that whoever closes a set does not wait for one to end."""

Answer = TypeVar("Answer")


def patiently(
    store: Store,
    name: str,
    attempt: Callable[[], Answer],
    clock: Clock,
    seconds: float,
    is_closed: Callable[[], bool] = lambda: False,
) -> Answer:
    """What `attempt` gives, as soon as it raises no OSError. It reads `name` of the store. A disk
    gets no second attempt: what it cannot read now it cannot read in a minute."""
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
                raise RunFailed(
                    f"{what} could not be read for {waited:.0f} s: {error}",
                    "see whether the store answers; the same command then goes on",
                ) from error
        _pause(pause, clock, is_closed)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def is_final(error: OSError) -> bool:
    """Whether asking again would get the same answer."""
    if isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError):
        return True
    return "Credentials" in type(error.__cause__).__name__  # botocore's NoCredentialsError and kin


def _pause(seconds: float, clock: Clock, is_closed: Callable[[], bool]) -> None:
    until = clock.monotonic() + seconds
    while (left := until - clock.monotonic()) > 0 and not is_closed():
        clock.sleep(min(NAP_SECONDS, left))
