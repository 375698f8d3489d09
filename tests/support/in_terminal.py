"""A command of `headway` in a terminal of its own, as a user has it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path
from threading import Thread
from typing import Self

from support.commands import HEADWAY
from support.waiting import wait_for

END_SECONDS = 60.0


class InTerminal:
    def __init__(self, *arguments: str, folder: Path, columns: int = 80, lines: int = 24) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(columns, lines)
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.shown = ""
        self.process = subprocess.Popen(
            [*HEADWAY, *arguments],
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while content := os.read(self._ours, 2**12):
                self.shown += content.decode(errors="replace")
        except OSError:
            pass  # closed

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait_for(self, words: str) -> None:
        try:
            wait_for(f"{words!r}", lambda: words in self.shown, END_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}; it showed {self.shown!r}") from None

    def end(self) -> int:
        """Its exit code; the terminal has to be as it was."""
        code = self.process.wait(END_SECONDS)
        assert termios.tcgetattr(self._theirs) == self.before, "the terminal is as it was"
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._theirs)
        self._reader.join(END_SECONDS)
        os.close(self._ours)
