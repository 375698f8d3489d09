"""What a terminal shows of what was written to it: rows of text, and whether any had colour."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

TOKEN = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)", re.DOTALL)


class Screen:
    """A terminal of its own as stderr, which knows what `LiveArea` uses."""

    def __init__(self) -> None:
        self._master, slave = pty.openpty()
        self.stderr = os.fdopen(slave, "w", encoding="utf-8")
        self.rows = [""]
        self.row = self.column = 0
        self.colours = 0

    def hang_up(self) -> None:
        os.close(self._master)

    def shown(self) -> list[str]:
        self.stderr.flush()
        data = b""
        while select.select([self._master], [], [], 0.05)[0]:
            data += os.read(self._master, 65536)
        for code, letter, back, new, text in TOKEN.findall(data.decode()):
            if letter == "A":
                self.row -= int(code)
            elif letter == "K":
                self.rows[self.row] = "" if code == "2" else self.rows[self.row][: self.column]
            elif letter == "J":
                self.rows[self.row] = self.rows[self.row][: self.column]
                del self.rows[self.row + 1 :]
            elif letter == "m":
                self.colours += 1
            elif back:
                self.column = 0
            elif new:  # the line discipline sends \r\n
                self.row += 1
                if self.row == len(self.rows):
                    self.rows.append("")
            elif text:
                old = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = old[: self.column] + text + old[self.column + len(text) :]
                self.column += len(text)
        return [row.rstrip() for row in self.rows if row.strip()]


@contextmanager
def screen(columns: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    """stderr is a terminal of so many columns."""
    made = Screen()
    monkeypatch.setattr(sys, "stderr", made.stderr)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("NO_COLOR", raising=False)
    try:
        yield made
    finally:
        monkeypatch.undo()
