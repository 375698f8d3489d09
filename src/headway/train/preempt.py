"""Being asked to stop: a flag that is set from outside and that the next step carries to all."""

from __future__ import annotations

import signal
from threading import Thread
from types import FrameType
from typing import BinaryIO


class StopRequest:
    """SIGTERM, SIGINT or the launcher's end set it; training looks at it between steps."""

    def __init__(self) -> None:
        self.asked = False

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
        self.asked = True
