"""Detects that training hangs, and dumps the stacks of all threads to this worker's log. Every
worker has a watchdog, so that all stacks are dumped when one worker blocks the others."""

from __future__ import annotations

import faulthandler
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from headway.clock import Clock
from headway.train.hang_rule import HangRule

LOOK_SECONDS = 1.0
MAX_HANGS = 2
"""Hangs in a row after which a worker ends itself."""


class Watchdog(HangRule):
    def __init__(
        self, clock: Clock, on_hang: Callable[[int], None], *, reports_late: bool = False
    ) -> None:
        """`on_hang` is called with the number of hangs in a row, in the watchdog's thread; with 0
        for a step that is late, if these are to be reported."""
        super().__init__(clock, reports_late=reports_late)
        self._on_hang = on_hang
        self._on_duty = False
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    @contextmanager
    def on_duty(self) -> Iterator[None]:
        """While steps are expected."""
        self.feed()
        self._on_duty = True
        try:
            yield
        finally:
            self._on_duty = False

    @contextmanager
    def off_duty(self) -> Iterator[None]:
        """Within `on_duty`: for what takes as long as it takes, such as a save that is waited
        for."""
        self._on_duty = False
        try:
            yield
        finally:
            self.feed()
            self._on_duty = True

    def _watch(self) -> None:
        while True:
            self._clock.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        if self._on_duty and (times := self.new_hang()) is not None:
            print(
                f"no step for {self.waited_seconds:.0f} s; stacks of all threads:",
                file=sys.stderr,
                flush=True,
            )
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
            self._on_hang(times)


def abort() -> NoReturn:
    """Ends this process by SIGABRT, which counts as a lost worker, without a core dump: one of a
    training process would take minutes and fill the disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    # Not 0: Linux ignores that where cores are piped to a program, and knows 1 as none at all.
    resource.setrlimit(resource.RLIMIT_CORE, (0 if hard == 0 else 1, hard))
    os.abort()
