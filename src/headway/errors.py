"""One error tree and one table of exit codes.

    HeadwayError            the user can act on it: message, hint, exit code
    ├── BadInput       2    a file, a flag or a value is wrong
    │   └── SpecError       ... in a run or target file, with file, line and column
    ├── NotFound       3    no such run, file or checkpoint
    ├── CheckFailed    4    a check ran and found a problem
    ├── StillRunning   5    it would disturb a run that is running
    ├── Stopped        6    the run stopped as asked and can be resumed
    └── RunFailed      1    training ended before its last step
        └── PeerLost   7    (between processes only) another worker was lost first

Any other exception is a defect of Headway and shows its traceback.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum

TRACEBACK = re.compile(r"^(\[rank\d+\]: )?Traceback \(most recent call last\)")
"""torch puts the rank before each line once a process group exists."""


class Exit(IntEnum):
    """Exit codes of commands and workers."""

    DONE = 0
    RUN_FAILED = 1
    BAD_INPUT = 2
    NOT_FOUND = 3
    CHECK_FAILED = 4
    STILL_RUNNING = 5
    STOPPED = 6
    PEER_LOST = 7
    """Workers only: it exited because it lost a peer, so it is not the one to blame."""
    GENERATION_OVER = 8
    """Workers only: the members have changed, and the next generation needs a new process."""
    DEVICE_LOST = 9
    """Workers and nodes of a target only: the device has failed, which is the machine's fault."""


class HeadwayError(Exception):
    """An error the user can act on. `hint` is the next thing to do, in one line."""

    exit_code: Exit = Exit.RUN_FAILED

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"

    def _render_traceback_(self) -> list[str]:
        """What notebooks show: the words of the terminal."""
        return [f"error: {self}"]


def without_hint(text: str) -> tuple[str, str | None]:
    """Message and hint of an error that another process printed."""
    message, mark, hint = f"\n{text.rstrip()}".rpartition("\nhint: ")
    return (message[1:], hint) if mark and "\n" not in hint else (text.rstrip(), None)


def traceback_lines(text: str) -> list[str]:
    """What another process printed, from its last traceback on; empty if there is none."""
    lines = text.splitlines()
    for index in range(len(lines) - 1, -1, -1):
        if found := TRACEBACK.match(lines[index]):
            return [line.removeprefix(found[1] or "") for line in lines[index:]]
    return []


class BadInput(HeadwayError):
    exit_code = Exit.BAD_INPUT


class SpecError(BadInput):
    """An error in a run or target file; `where` is `file:line:column`.

    The whole file is checked: `others` are the further problems found in it.
    """

    def __init__(
        self, problem: str, where: str, hint: str | None = None, others: Sequence[SpecError] = ()
    ) -> None:
        super().__init__(f"{where}: {problem}", hint)
        self.problem = problem
        self.where = where
        self.others = others

    @property
    def position(self) -> tuple[str, int | None, int | None]:
        """File, line and column; no line where it is about the whole file or a --set."""
        file, *numbers = self.where.rsplit(":", 2)
        if len(numbers) == 2 and all(number.isdigit() for number in numbers):
            return file, int(numbers[0]), int(numbers[1])
        return self.where, None, None

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(str(other) for other in self.others)])


class NotFound(HeadwayError):
    exit_code = Exit.NOT_FOUND


class CheckFailed(HeadwayError):
    exit_code = Exit.CHECK_FAILED


class StillRunning(HeadwayError):
    exit_code = Exit.STILL_RUNNING


class Stopped(HeadwayError):
    exit_code = Exit.STOPPED


class RunFailed(HeadwayError):
    exit_code = Exit.RUN_FAILED


class PeerLost(RunFailed):
    exit_code = Exit.PEER_LOST


INSTALL_TRAIN = "pip install 'headway[train]'"


def needs_train(what: str, error: ImportError) -> HeadwayError:
    """The error for a command that needs the training extra, from the import that failed."""
    missing = error.name or str(error)
    return BadInput(f"{what} needs the training extra ({missing} is not installed)", INSTALL_TRAIN)
