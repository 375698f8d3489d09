"""Being asked to stop: a flag that a signal sets and the next step carries to all workers."""

from __future__ import annotations

import signal
from types import FrameType


class StopRequest:
    """SIGTERM and SIGINT set it; training looks at it between steps."""

    def __init__(self) -> None:
        self.asked = False

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
