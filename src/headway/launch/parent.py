"""The launcher's side of the warm parent: the process that has done the imports and forks workers.

What is said between them is in `headway.train.warm`; this side knows no torch.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from headway.errors import RunFailed

COMMAND = (sys.executable, "-m", "headway.train.warm")
END_SECONDS = 5.0


@dataclass(frozen=True)
class Started:
    name: str
    pid: int


@dataclass(frozen=True)
class Ended:
    name: str
    code: int
    """As subprocess has it: negative for a signal."""
    words: str = ""
    """Why it ended, if it could say so."""


class ParentLost(RunFailed):
    """Nobody can say any more how workers end, nor start others."""


class WarmParent:
    def __init__(
        self,
        run_directory: str,
        environment: Mapping[str, str],
        log: Path,
        lock: int | None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        """Workers inherit `lock`, where there is one: as long as one lives, the run goes on."""
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, run_directory],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                pass_fds=() if lock is None else (lock,),
                env=dict(environment),
                # Ctrl-C in a terminal goes to the whole foreground group; workers are asked to stop
                # by the launcher, once.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._answers = self._process.stdout.fileno()
        os.set_blocking(self._answers, False)
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Its workers read the end of their stdin when it is gone."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def start(
        self, name: str, arguments: list[str], environment: Mapping[str, str], log: Path
    ) -> None:
        assert self._process.stdin is not None
        command = {
            "start": name,
            "arguments": arguments,
            "environment": dict(environment),
            "log": str(log),
        }
        with suppress(BrokenPipeError):  # `news` says that it is gone
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def news(self, seconds: float) -> list[Started | Ended]:
        """What has happened; waits so long for something to happen."""
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return []
        data = b""
        with suppress(BlockingIOError):
            while part := os.read(self._answers, 65536):
                data += part
            how = self._process.wait(END_SECONDS)
            words = f"was killed by signal {-how}" if how < 0 else f"ended with exit code {how}"
            raise ParentLost(f"the parent of the workers {words}", f"its log is {self.log}")
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [one for line in lines if (one := _read(json.loads(line))) is not None]


def _read(answer: dict[str, Any]) -> Started | Ended | None:
    if "started" in answer:
        return Started(answer["started"], answer["pid"])
    if "ended" in answer:
        return Ended(answer["ended"], answer["code"], answer.get("words", ""))
    return None
