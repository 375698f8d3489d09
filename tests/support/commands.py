"""The headway command as a user types it, in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Thread
from typing import IO, Self

from support.waiting import wait_for

HEADWAY = [sys.executable, "-m", "headway.cli.main"]


def headway(
    *arguments: str, folder: Path, expect: int | None = 0, seconds: float = 240
) -> subprocess.CompletedProcess[str]:
    command = [*HEADWAY, *arguments]
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        process = subprocess.Popen(command, cwd=folder, stdout=stdout, stderr=stderr)
        outcome = f"waited {seconds:.0f} s for its end"
        try:
            wait_for("its end", lambda: process.poll() is not None, seconds)
            outcome = f"exit code {process.returncode}"
        except AssertionError:
            process.kill()
            process.wait()
        done = subprocess.CompletedProcess(
            command, process.returncode, _read(stdout), _read(stderr)
        )
    is_expected = done.returncode > 0 if expect is None else done.returncode == expect
    assert is_expected, f"headway {' '.join(arguments)}: {outcome}\n{done.stdout}\n{done.stderr}"
    return done


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*HEADWAY, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=_heed_ctrl_c,
    )


def _heed_ctrl_c() -> None:
    """Tests that were started in the background ignore it, and so would their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Started:
    """A command that goes on; what it prints is read all the time, since it may be more than a pipe
    holds."""

    def __init__(self, *arguments: str, folder: Path) -> None:
        self.process = start(*arguments, folder=folder)
        self.output = ""
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Typed(Started):
    """One whose words are waited for."""

    def wait_for(self, words: str, seconds: float) -> None:
        def is_said() -> bool:
            has_ended = self.process.poll() is not None
            assert words in self.output or not has_ended, f"no {words!r} in {self.output}"
            return words in self.output

        try:
            wait_for(f"{words!r}", is_said, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; it said: {self.output}") from None

    def interrupt(self, seconds: float = 30.0) -> int:
        """As by Ctrl-C: its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.end(seconds)

    def end(self, seconds: float) -> int:
        code = self.process.wait(seconds)
        self._reader.join(seconds)
        return code
