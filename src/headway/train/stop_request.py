"""A request to stop: a flag that is set from outside and that the next step shares with all
workers."""

from __future__ import annotations

import os
import signal
import time
from threading import Thread
from types import FrameType
from typing import BinaryIO

PARENT_LOOK_SECONDS = 0.5


class StopRequest:
    """Set by SIGTERM, SIGINT or the exit of the launcher; training checks it between steps. In a
    live run SIGTERM means this worker only: its machine is wanted back."""

    def __init__(self, is_live: bool = False) -> None:
        self.asked = False
        """Whether the run was asked to stop."""
        self.leave_asked = False
        """Whether this worker was asked to leave."""
        self.is_for_good = False
        """Whether that was a person's wish: another launcher is not to start it again."""
        self._is_live = is_live

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def follow(self, launcher: BinaryIO) -> None:
        """Stops when the launcher's end of this pipe closes: the launcher is dead, and no longer
        supervises this worker."""

        def wait_for_the_end() -> None:
            while launcher.read(1):
                pass
            self.asked = True

        Thread(target=wait_for_the_end, name="launcher", daemon=True).start()

    def follow_parent(self) -> None:
        """Stops when the process that has started this one is gone: nobody would restart it."""
        parent = os.getppid()

        def wait_for_the_end() -> None:
            while os.getppid() == parent:
                time.sleep(PARENT_LOOK_SECONDS)
            self.asked = True

        Thread(target=wait_for_the_end, name="launcher", daemon=True).start()

    def ask_for_good(self) -> None:
        self.is_for_good = self.asked = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._is_live and number == signal.SIGTERM:
            self.leave_asked = True
        else:
            self.asked = True
