"""Being asked to stop: a flag that is set from outside and that the next step carries to all."""

from __future__ import annotations

import signal
from threading import Thread
from types import FrameType
from typing import BinaryIO


class StopRequest:
    """SIGTERM, SIGINT or the launcher's end set it; training looks at it between steps. Where
    workers come and go, SIGTERM means this one only: its machine is wanted back."""

    def __init__(self, is_live: bool = False) -> None:
        self.asked = False
        """The run is to stop."""
        self.leave_asked = False
        """This worker is to leave."""
        self._is_live = is_live

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def follow(self, launcher: BinaryIO) -> None:
        """Stop when the launcher's end of this pipe closes: it is dead, and nobody looks after
        this worker any more."""

        def wait_for_the_end() -> None:
            while launcher.read(1):
                pass
            self.asked = True

        Thread(target=wait_for_the_end, name="launcher", daemon=True).start()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._is_live and number == signal.SIGTERM:
            self.leave_asked = True
        else:
            self.asked = True
