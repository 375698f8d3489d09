"""The heartbeat of a run's launcher: `owner.json`, rewritten every 20 s.

It decides nothing. A second start reads it to refuse, with words, what would end a run that is
being trained elsewhere; whoever insists takes the run over all the same (`chain`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread
from types import TracebackType

from headway.clock import Clock
from headway.errors import StillRunning
from headway.state.chain import machine
from headway.state.run_directory import RunDirectory

NAME = "owner.json"
EACH_SECONDS = 20.0
FRESH_SECONDS = 100.0
OWNER_SECONDS, LOOK_SECONDS = 180.0, 2.0
"""Longest wait for another launcher of the run to end, and between two looks."""
BOOT_ID, PROCESSES = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")


@dataclass(frozen=True)
class Owner:
    launch: str
    machine: str
    boot: str
    """Where its process id means something: a machine since its start, and a namespace of
    processes on it. Empty where that is not known."""
    pid: int
    time: float
    has_ended: bool = False

    @property
    def is_dead(self) -> bool:
        """Whether it is known to have ended: only of a process on this machine."""
        if self.has_ended:
            return True
        if not self.boot or self.boot != _boot():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


class SignsOfLife:
    """Shows others that this launch is alive, until it ends."""

    def __init__(self, directory: RunDirectory, launch: str, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._launch = launch
        self._over = Event()
        self._thread = Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> SignsOfLife:
        self._write(has_ended=False)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        found = owner(self._directory)
        if found is not None and found.launch == self._launch:
            self._write(has_ended=True)

    def _beat(self) -> None:
        while not self._over.wait(EACH_SECONDS):
            found = owner(self._directory)
            if found is not None and found.launch != self._launch:
                return  # taken over: the successor's heartbeat is not to be hidden
            self._write(has_ended=False)

    def _write(self, has_ended: bool) -> None:
        now = self._clock.now()
        mine = Owner(self._launch, machine(), _boot(), os.getpid(), now, has_ended)
        with suppress(OSError):  # training does not depend on it
            self._directory.store.write(NAME, json.dumps(asdict(mine)).encode() + b"\n")


def owner(directory: RunDirectory) -> Owner | None:
    """Return who has shown last that it trains the run; None if that is nobody or unreadable."""
    try:
        return Owner(**json.loads(directory.store.read(NAME)))
    except (OSError, ValueError, TypeError):
        return None


def alive_elsewhere(directory: RunDirectory, clock: Clock, launch: str = "") -> Owner | None:
    """Return the launch that has shown a moment ago that it trains the run, if it is another."""
    found = owner(directory)
    if found is None or found.launch == launch or found.is_dead:
        return None
    return found if abs(clock.now() - found.time) < FRESH_SECONDS else None


def require_alone(directory: RunDirectory, clock: Clock, otherwise: str) -> None:
    """Raise StillRunning if the run is being trained elsewhere. `otherwise`: what to do if that
    machine is gone."""
    found = alive_elsewhere(directory, clock)
    if found is None:
        return
    seconds = abs(clock.now() - found.time)
    raise StillRunning(
        f"run {directory.name} is being trained on {found.machine} (process {found.pid}), which "
        f"showed that {seconds:.0f} s ago",
        f"stop it there; if that machine is gone, {otherwise}",
    )


def wait_until_alone(
    directory: RunDirectory, clock: Clock, launch: str, say: Callable[[str], None]
) -> None:
    """Wait until nobody but this launch shows that it trains the run: a launcher that has ended by
    force did so a moment ago."""
    deadline, said = clock.monotonic() + OWNER_SECONDS, False
    while (found := alive_elsewhere(directory, clock, launch)) is not None:
        words = f"the run is still being trained on {found.machine} (process {found.pid})"
        if clock.monotonic() > deadline:
            raise StillRunning(words, "stop it there; this is tried again")
        if not said:
            said = True
            say(f"{words}: waiting for it to end")
        clock.sleep(LOOK_SECONDS)


def _boot() -> str:
    try:
        return f"{BOOT_ID.read_text().strip()} {PROCESSES.readlink()}"
    except OSError:
        return ""
