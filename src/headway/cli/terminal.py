"""What is drawn in a terminal: colour, and lines at its bottom that are redrawn.

By hand rather than with rich: docs/decisions.md says why under "The terminal by hand".
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from contextlib import suppress
from threading import RLock, Thread
from typing import Literal, TextIO

Style = Literal["", "bold", "dim", "red", "green", "yellow", "cyan"]
Piece = tuple[str, Style]
Line = Sequence[Piece]

CODES: dict[Style, str] = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}
NO_WRAP, WRAP = "\x1b[?7l", "\x1b[?7h"
ERASE_LINE, ERASE_BELOW = "\x1b[K", "\x1b[J"
LABELS: tuple[tuple[str, Style], ...] = (
    ("error:", "red"),
    ("warning:", "yellow"),
    ("hint:", "cyan"),
    ("note:", "cyan"),
)
"""How a message begins, and the colour of that word."""
DEFAULT_COLUMNS = 80


def can_redraw(stream: TextIO) -> bool:
    """Whether it is a terminal that moves its cursor when it is told to."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def has_colour(stream: TextIO) -> bool:
    return can_redraw(stream) and not os.environ.get("NO_COLOR")


def painted(text: str, style: Style, is_coloured: bool) -> str:
    return f"\x1b[{CODES[style]}m{text}\x1b[0m" if style and is_coloured else text


def labelled(text: str, is_coloured: bool) -> str:
    """A message with its first word in colour: `warning:` in yellow."""
    for label, style in LABELS:
        if text.startswith(label):
            return painted(label, style, is_coloured) + text[len(label) :]
    return text


class LiveArea:
    """Lines at the bottom of the terminal behind stderr. While it is `held`, everything that this
    process and its children write to stderr is printed above them."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.fileno()
        self._is_coloured = has_colour(sys.stderr)
        self._drawn: list[str] = []
        """Plain text of the lines that are on the screen."""
        self._last: Sequence[Line] = ()
        self._width = self.width
        # The reader of stderr draws as well; a signal handler may, in the middle of a draw.
        self._lock = RLock()
        self._capture: _StderrCapture | None = None

    @property
    def width(self) -> int:
        """Columns for a line: one less than there are, since terminals disagree about the cursor
        behind the last one."""
        return self._columns - 1

    @property
    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._terminal).columns or DEFAULT_COLUMNS
        except OSError:
            return DEFAULT_COLUMNS

    def hold(self) -> None:
        """From now on, whatever is written to stderr is printed above the area."""
        self._terminal = os.dup(self._terminal)
        self._capture = _StderrCapture(self)

    def draw(self, lines: Sequence[Line]) -> None:
        with self._lock:
            width = self.width
            cut = [_cut(line, width) for line in lines]
            plain = ["".join(text for text, _ in line) for line in cut]
            if (plain, width) == (self._drawn, self._width):
                return
            # Rows that the terminal has broken stay marked as one line until they are erased.
            erase = ERASE_BELOW if width != self._width else ""
            self._write(self._home() + erase + self._area(cut))
            self._drawn, self._last, self._width = plain, lines, width

    def above(self, text: str) -> None:
        """Prints lines that stay, above the area."""
        with self._lock:
            text = labelled(text, self._is_coloured)
            cut = [_cut(line, self.width) for line in self._last]
            self._write(f"{self._home()}{ERASE_BELOW}{text}\n{self._area(cut)}")

    def erase(self) -> None:
        with self._lock:
            if self._drawn:
                self._write(self._home() + ERASE_BELOW)
            self._drawn, self._last = [], ()

    def close(self) -> None:
        """Removes the area; stderr is as before."""
        self.erase()
        if self._capture is not None:
            self._capture.end()
            self._capture = None
            os.close(self._terminal)
            self._terminal = sys.stderr.fileno()

    def _home(self) -> str:
        """Moves to the area's first column and row. A terminal that was made narrower since has
        broken its lines into several."""
        columns = self._columns
        rows = sum(max(1, -(-len(text) // columns)) for text in self._drawn)
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "")

    def _area(self, lines: Sequence[Line]) -> str:
        """The cursor stays behind the last line: there is no empty one below."""
        if not lines:
            return ""
        drawn = f"{ERASE_LINE}\n".join(
            "".join(painted(text, style, self._is_coloured) for text, style in line)
            for line in lines
        )
        return f"{NO_WRAP}{drawn}{ERASE_BELOW}{WRAP}"

    def _write(self, text: str) -> None:
        data = text.encode(sys.stderr.encoding or "utf-8", errors="replace")
        with suppress(OSError):  # a terminal that was closed does not end training
            while data:
                data = data[os.write(self._terminal, data) :]


class _StderrCapture:
    """Reads what is written to stderr, and prints it above a live area by whole lines."""

    def __init__(self, area: LiveArea) -> None:
        self._area = area
        sys.stderr.flush()
        self._stderr = os.dup(sys.stderr.fileno())
        self._pipe, written = os.pipe()
        os.dup2(written, sys.stderr.fileno())
        os.close(written)
        self._wake, self._waker = os.pipe()
        self._rest = b""
        self._thread = Thread(target=self._read, name="stderr", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Children may keep the pipe open: what they have written so far is printed."""
        sys.stderr.flush()
        os.dup2(self._stderr, sys.stderr.fileno())
        os.close(self._waker)
        self._thread.join()
        for descriptor in (self._stderr, self._pipe, self._wake):
            os.close(descriptor)

    def _read(self) -> None:
        while True:
            ready, _, _ = select.select([self._pipe, self._wake], [], [])
            if self._pipe not in ready:
                break
            data = os.read(self._pipe, 65536)
            if not data:
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            if lines:
                self._print(b"\n".join(lines))
        if self._rest:
            self._print(self._rest)

    def _print(self, data: bytes) -> None:
        self._area.above(data.decode(errors="replace"))


def _cut(line: Line, width: int) -> list[Piece]:
    """As much of it as fits."""
    pieces: list[Piece] = []
    left = width
    for text, style in line:
        if text[:left]:
            pieces.append((text[:left], style))
            left -= len(text[:left])
    return pieces
