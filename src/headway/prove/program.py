"""Runs `headway`, and what needs torch, as processes of their own, until a common deadline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from headway.clock import Clock
from headway.prove.judge import ProofFailed

HEADWAY = (sys.executable, "-m", "headway.cli.main")
COMMAND_SECONDS = 300.0
"""The longest that one command may take: imports from a slow disk, and a minute of training."""
END_SECONDS = 10.0
POLL_SECONDS = 0.02
LAST_LINES = 6


class Program:
    """Commands in one folder. Each leaves what it printed in `logs` below it."""

    def __init__(
        self, folder: Path, clock: Clock, seconds: float, headway: Sequence[str] = HEADWAY
    ) -> None:
        self.folder = folder
        self.clock = clock
        self._deadline = clock.monotonic() + seconds
        self._headway = headway
        self._num_commands = 0

    @property
    def seconds_left(self) -> float:
        return self._deadline - self.clock.monotonic()

    def headway(self, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """What it printed on stdout."""
        with self.started(*arguments, environment=environment) as command:
            return command.wait()

    def module(
        self, name: str, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> Any:
        """The last line that `python -m NAME` printed, which is JSON."""
        words = (sys.executable, "-m", name, *arguments)
        with self._started(words, environment or {}) as command:
            return json.loads(command.wait().splitlines()[-1])

    def ranks(
        self, name: str, workers: int, *arguments: str, environment: Mapping[str, str]
    ) -> Iterator[Any]:
        """The lines of JSON that the first of several processes of `python -m NAME ... RANK`
        printed; raises after them if one of the processes failed."""
        with ExitStack() as stack:
            commands = [
                stack.enter_context(
                    self._started((sys.executable, "-m", name, *arguments, str(rank)), environment)
                )
                for rank in range(workers)
            ]
            failed = None
            try:
                wait_for_all(commands, self.clock)
            except ProofFailed as error:
                failed = error
            yield from map(json.loads, commands[0].lines())
            if failed is not None:
                raise failed

    @contextmanager
    def started(
        self, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> Iterator[Command]:
        with self._started((*self._headway, *arguments), environment or {}) as command:
            yield command

    @contextmanager
    def _started(self, words: Sequence[str], environment: Mapping[str, str]) -> Iterator[Command]:
        left = self.seconds_left
        if left <= 0:
            raise ProofFailed("not reached in time")
        self._num_commands += 1
        (self.folder / "logs").mkdir(exist_ok=True)
        log = self.folder / "logs" / f"{self._num_commands:02d}.log"
        command = Command(words, self.folder, log, environment, self.clock)
        command.deadline = self.clock.monotonic() + min(left, COMMAND_SECONDS)
        try:
            yield command
        finally:
            command.end()


def wait_for_all(commands: Sequence[Command], clock: Clock) -> None:
    """Raises for the first that fails: the others may wait for it in a collective."""
    while [command for command in commands if command.is_running()]:
        for command in commands:
            if command.process.returncode:
                command.wait()
        clock.sleep(POLL_SECONDS)
    for command in commands:
        command.wait()


class Command:
    """A process that was started."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        log: Path,
        environment: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self.deadline = 0.0
        self._log = log
        self._output = log.with_suffix(".out")
        self._shown = " ".join(words).replace(" ".join(HEADWAY), "headway")
        self._clock = clock
        with log.open("w") as errors, self._output.open("w") as output:
            errors.write(f"$ {self._shown}\n")
            errors.flush()
            self.process = subprocess.Popen(
                words,
                cwd=folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )

    def is_running(self) -> bool:
        """Raises if it is late."""
        if self.process.poll() is not None:
            return False
        if self._clock.monotonic() > self.deadline:
            raise ProofFailed(f"{self._shown} took too long; its output: {self._log}")
        return True

    def wait(self) -> str:
        """What it printed on stdout; raises if it fails."""
        while self.is_running():
            self._clock.sleep(POLL_SECONDS)
        if self.process.returncode != 0:
            last = self._log.read_text(errors="replace").splitlines()[1:][-LAST_LINES:]
            code = self.process.returncode
            raise ProofFailed("\n".join([f"{self._shown} ended with exit code {code}:", *last]))
        return self._output.read_text()

    def lines(self) -> list[str]:
        """Whole lines on stdout so far."""
        return self._output.read_text().split("\n")[:-1]

    def end(self) -> None:
        """The second interrupt makes `headway run` end its workers at once."""
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
            if self.process.poll() is not None:
                return
            self.process.send_signal(number)
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                continue
