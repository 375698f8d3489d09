"""The command as a child process: started, ended with a grace period, its last words."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from headway.clock import Clock
from headway.errors import BadInput, PeerLost
from headway.script.processes import (
    ProcessStat,
    ends_with_its_input,
    group_members,
    is_running,
    shells_and_their_children,
)

PYTHON = ("python", "python3")
"""The interpreter that this process runs in: an image may have another one in PATH."""
TAIL_BYTES = 32768
ABORT_SECONDS = 10.0
INPUT_SECONDS = 5.0
"""For one that reads a pipe to end, once those that write to it have."""
MISTAKES = (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR)
"""Of a command that no start would begin. Others are the machine's: no memory, too many processes,
a file system that fails."""
SET_PDEATHSIG = 1


class Child:
    def __init__(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str], clock: Clock
    ) -> None:
        self._clock = clock
        self.started_at = clock.monotonic()
        self._log_start = _log_size()
        self._asked_at: float | None = None
        self._kill_at: float | None = None
        self._was_killed = False
        self._signalled: list[tuple[int, int]] = []
        """Processes that were sent SIGTERM, with the times of their starts."""
        self._readers: list[tuple[int, int]] = []
        """Those that are to end when their input does."""
        self._input_ended_at: float | None = None
        executable = sys.executable if command[0] in PYTHON else command[0]
        if not folder.is_dir():
            raise BadInput(f"the working folder {folder} does not exist")
        try:
            self.process = subprocess.Popen(
                [executable, *command[1:]],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                preexec_fn=_end_with_parent,
            )
        except OSError as error:
            kind = BadInput if error.errno in MISTAKES else PeerLost
            raise kind(f"command: {command[0]} cannot be started: {error.strerror}") from None
        except subprocess.SubprocessError as error:
            raise PeerLost(f"command: {command[0]} cannot be started: {error}") from None

    @property
    def age_seconds(self) -> float:
        return self._clock.monotonic() - self.started_at

    @property
    def is_asked_to_end(self) -> bool:
        return self._kill_at is not None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs, or something that was asked to
        end with it does."""
        now = self._clock.monotonic()
        is_late = self._kill_at is not None and now >= self._kill_at
        if is_late:
            is_left = self.process.poll() is None or _are_running(self._signalled)
            self._was_killed = self._was_killed or is_left
            self.process.kill()
        code = self.process.poll()
        if code is not None and not is_late and self._is_waited_for(now):
            return None  # a shell ends at once, and what it has started may still save
        return code

    def _is_waited_for(self, now: float) -> bool:
        if _are_running(self._signalled):
            return True
        if self._input_ended_at is None:
            self._input_ended_at = now
        if now - self._input_ended_at < INPUT_SECONDS:
            return _are_running(self._readers)
        _ask_to_end(self._readers)
        return False

    def how_it_ended(self, exit_code: int) -> str:
        """After a request to end; empty if there was none."""
        if self._asked_at is None or self._kill_at is None:
            return ""
        if self._was_killed:
            seconds = self._kill_at - self._asked_at
            return f"did not end within {seconds:.0f} s after SIGTERM: killed"
        if exit_code < 0:
            return f"was ended by {signal.Signals(-exit_code).name} after SIGTERM was sent"
        return f"exited with {exit_code} after SIGTERM"

    def end(self, grace_seconds: float) -> None:
        """SIGTERM, once, and SIGKILL after that time; a shorter time than before counts."""
        now = self._clock.monotonic()
        kill_at = now + grace_seconds
        if self._kill_at is None:
            self._asked_at, self._kill_at = now, kill_at
            # Not to the whole group: workers of a DataLoader would end before the script has saved.
            for one in shells_and_their_children(self.process.pid):
                (self._readers if ends_with_its_input(one[0]) else self._signalled).append(one)
            _ask_to_end(self._signalled)
        self._kill_at = min(self._kill_at, kill_at)

    def abort(self) -> None:
        """Ends a script that hangs. What is written then is for people to see."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGABRT)
        self._kill_at = self._clock.monotonic() + ABORT_SECONDS

    def processes(self) -> list[ProcessStat]:
        """The script's, with all that it has started and that has not left its group."""
        return [one for one in group_members(os.getpgrp()) if one.pid != os.getpid()]

    def printed(self) -> str:
        """The end of what it has written to this worker's log."""
        with suppress(OSError):
            if stat.S_ISREG(os.fstat(2).st_mode):
                with open("/proc/self/fd/2", "rb") as log:
                    size = log.seek(0, os.SEEK_END)
                    log.seek(max(self._log_start, size - TAIL_BYTES))
                    return log.read().decode("utf-8", errors="replace").rstrip()
        return ""


def _are_running(processes: Sequence[tuple[int, int]]) -> bool:
    return any(is_running(*one) for one in processes)


def _ask_to_end(processes: Sequence[tuple[int, int]]) -> None:
    for pid, started in processes:
        with suppress(ProcessLookupError):
            if is_running(pid, started):
                os.kill(pid, signal.SIGTERM)


def _log_size() -> int:
    with suppress(OSError):
        return os.fstat(2).st_size
    return 0


_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """However its worker ends: an orphan would train on beside its successor."""
    if _prctl is not None:
        _prctl(SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
