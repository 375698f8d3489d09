"""What is drawn in a terminal: colour, and lines at its bottom that are redrawn."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
LABELS: tuple[tuple[str, Style], ...] = (
    ("error:", "red"),
    ("warning:", "yellow"),
    ("hint:", "cyan"),
    ("note:", "cyan"),
)
"""How a message begins, and the colour of that word."""


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
        from rich.console import Console
        from rich.live import Live

        self._is_coloured = has_colour(sys.stderr)
        self._console = Console(stderr=True, color_system="auto" if self._is_coloured else None)
        # stderr is captured below rich: what children write goes past `sys.stderr`.
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        # The reader of stderr draws as well; a signal handler may, in the middle of a draw.
        self._lock = RLock()
        self._capture: _StderrCapture | None = None

    @property
    def width(self) -> int:
        """Columns for a line: one less than there are, since terminals disagree about the cursor
        behind the last one."""
        return self._console.width - 1

    def hold(self) -> None:
        """From now on, whatever is written to stderr is printed above the area."""
        terminal, stderr = os.dup(sys.stderr.fileno()), sys.stderr
        self._console.file = os.fdopen(terminal, "w", encoding=stderr.encoding, errors="replace")
        self._capture = _StderrCapture(self)

    def draw(self, lines: Sequence[Line]) -> None:
        from rich.text import Text

        texts = [Text.assemble(*line) for line in lines]
        with self._drawing():
            self._live.start()
            self._console.show_cursor()  # a process that is killed would leave it hidden
            area = Text("\n", no_wrap=True, overflow="crop").join(texts)
            self._live.update(area, refresh=True)

    def above(self, text: str) -> None:
        """Prints lines that stay, above the area."""
        from rich.text import Text

        with self._drawing():
            stays = Text.from_ansi(labelled(text, self._is_coloured))
            self._console.print(stays, soft_wrap=True)

    def close(self) -> None:
        """Removes the area; stderr is as before."""
        with self._drawing():
            self._live.stop()
        if self._capture is not None:
            self._capture.end()
            self._capture = None
            terminal, self._console.file = self._console.file, sys.stderr
            with suppress(OSError):
                terminal.close()

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """A terminal that was closed does not end training: nothing more is drawn."""
        with self._lock:
            try:
                yield
            except OSError:
                self._console.quiet = True


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
        self._area.above(data.decode(errors="replace").replace("\r\n", "\n").rstrip("\r"))
