"""Why a script has failed, from what it has printed."""

from __future__ import annotations

from headway.errors import traceback_lines

MOST_FRAMES_LINES, MOST_MESSAGE_LINES = 32, 8


def last_traceback(text: str) -> str:
    """The last traceback and its message, without what was printed after it: trackers say goodbye
    in forty lines. Empty: there is none."""
    lines = traceback_lines(text)
    return _block(lines) if lines else ""


def _block(lines: list[str]) -> str:
    head, *rest = lines
    length = next((n for n, line in enumerate(rest) if line[:1] not in (" ", "")), len(rest))
    frames, message = rest[:length], rest[length : length + MOST_MESSAGE_LINES]
    if "" in message:
        message = message[: message.index("")]
    return "\n".join([head, *frames[-MOST_FRAMES_LINES:], *message])
