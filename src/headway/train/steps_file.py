"""The steps that this worker has taken, in a file of its launcher, which wants to know when the
worker was lost: whether it has taken any, and at which it ended. It outlives a SIGKILL, and needs
no store."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class StepsFile:
    """One line: the step from which the generation resumed, and the last one taken."""

    def __init__(self, path: Path | None) -> None:
        """None: nobody wants to know."""
        self._file: int | None = None
        self._first = 0
        if path is not None:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def begin(self, step: int) -> None:
        self._first = step
        self.took(step)

    def took(self, step: int) -> None:
        if self._file is not None:
            with suppress(OSError):  # a full disk does not stop training
                os.pwrite(self._file, f"{self._first:>12} {step:>12}\n".encode(), 0)
