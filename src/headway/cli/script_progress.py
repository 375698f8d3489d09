"""Progress of a script: what its first worker prints, and a line with what is known of it."""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from headway.cli.output import short_time
from headway.cli.progress import RunProgress
from headway.cli.run_frame import Frame
from headway.errors import traceback_lines

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from headway.cli.terminal import Line
    from headway.clock import Clock
    from headway.errors import RunFailed
    from headway.state.run_directory import RunDirectory

MOST_BYTES = 2**18
"""Of a log that are shown at once: a script that prints more would hold up its launcher."""
MOST_SHOWN = 500
"""Lines that are remembered: a traceback among them is not shown again."""


class ScriptProgress(RunProgress):
    starting = "starting the script"

    def __init__(self, directory: RunDirectory, clock: Clock) -> None:
        super().__init__(directory, clock)
        self._printed = FollowedLog(self.directory.log(0, 0))
        self._shown: deque[str] = deque(maxlen=MOST_SHOWN)

    def show(self) -> None:
        self._show_printed()
        super().show()

    def close(self) -> None:
        self._show_printed(is_last=True)
        super().close()

    def _show_printed(self, is_last: bool = False) -> None:
        for line in self._printed.new_lines(is_last):
            self._shown.append(line)
            self.line.above(line)

    def once(self, error: RunFailed) -> None:
        """Leaves out of its message the traceback that was shown above."""
        self._show_printed(is_last=True)
        error.message = without_frames(error.message, self._shown)

    def _started(self, event: dict[str, Any]) -> None:
        is_first = self.frame is None
        step = self.frame.step if self.frame is not None else int(event["step"])
        self.frame = Frame(step, total_steps=0, loss=None)
        self.stuck_step = None
        workers = event["workers"]
        self._set_workers(workers)
        several = "s" if workers > 1 else ""
        begin = "started" if is_first else "started again"
        self.line.above(f"{begin}: {workers} worker{several} on {event['device']}")

    def _step(self, frame: Frame, record: dict[str, Any]) -> None:
        frame.step = record["step"]

    def _plain(self, frame: Frame) -> str:
        return f"step {frame.step}"

    def _lines(self, frame: Frame, width: int) -> list[Line]:
        at = f"step {frame.step}" if frame.step else "running"
        line: Line = [(at, "bold"), (f"  {short_time(frame.elapsed_seconds or 0.0)}", "dim")]
        if frame.workers is not None:
            several = "s" if frame.workers > 1 else ""
            line = [*line, (f"  {frame.workers} worker{several}", "")]
        return [line]


def without_frames(message: str, shown: Collection[str]) -> str:
    """Without the head and the frames of its traceback, if all of these were shown; what was raised
    stays."""
    block = traceback_lines(message)
    frames = block[:1] + list(takewhile(lambda line: line.startswith(" "), block[1:]))
    if len(frames) == len(block) or not set(frames) <= set(shown):
        return message
    before = message.splitlines()[: -len(block)]
    return "\n".join([*before, *block[len(frames) :]])


class FollowedLog:
    """What is appended to a log from now on, by whole lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = path.stat().st_size if path.is_file() else 0

    def new_lines(self, is_last: bool = False) -> list[str]:
        """`is_last`: also a line that is not ended yet."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._read:
                    self._read = 0  # begun anew
                skipped = max(0, size - self._read - MOST_BYTES)
                file.seek(self._read + skipped)
                data = file.read(size - self._read - skipped)
        except FileNotFoundError:
            return []
        end = len(data) if is_last else data.rfind(b"\n") + 1
        if not end:
            return []
        self._read += skipped + end
        text = data[:end].decode(errors="replace").removesuffix("\n")
        lines = [_as_seen(line) for line in text.split("\n")]
        if skipped:
            lines[0] = f"... {skipped:,} bytes are not shown: headway logs has them"
        return lines


def _as_seen(line: str) -> str:
    """A bar that redraws itself is one line: its last state."""
    return line.rstrip("\r").rpartition("\r")[2]
