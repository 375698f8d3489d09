"""The launcher's side of the fork server: the process that has done the imports and forks workers.

The protocol between them is in `headway.train.fork_server`; this side does not know torch.
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
from headway.spec.resolve import Resolved

SAFE_PATH = ("-P",) if sys.flags.safe_path else ()
"""In a pod whose image is the user's, this process was started without the working folder on its
path (kube/bootstrap.py). Elsewhere workers have it, and may have the user's modules from it."""
COMMAND = (sys.executable, *SAFE_PATH, "-m", "headway.train.fork_server")
SCRIPT_COMMAND = (sys.executable, "-P", "-m", "headway.script")
"""For the workers of a script, which import nothing of the user's: a `queue.py` beside the run file
is the script's, not ours."""
EXIT_SECONDS = 5.0


def fork_server_command(resolved: Resolved) -> Sequence[str]:
    return SCRIPT_COMMAND if resolved.is_script else COMMAND


@dataclass(frozen=True)
class WorkerStarted:
    name: str
    pid: int


@dataclass(frozen=True)
class WorkerExited:
    name: str
    exit_code: int
    """As subprocess has it: negative for a signal."""
    last_words: str = ""
    """Cause of the exit, if the worker reported one."""


class ForkServerLost(RunFailed):
    """Exits of workers are not reported any more, and none can be started."""


class ForkServerProcess:
    def __init__(
        self,
        run_directory: str,
        environment: Mapping[str, str],
        log: Path,
        lock: int | None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        """Workers inherit `lock`, if given: the run counts as running while one of them lives."""
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
                # Ctrl-C in a terminal goes to the whole foreground group; the launcher asks workers
                # to stop, once.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._answers = self._process.stdout.fileno()
        os.set_blocking(self._answers, False)
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Its workers read the end of their stdin when it has exited."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(EXIT_SECONDS)
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
        with suppress(BrokenPipeError):  # `poll` raises for it
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def poll(self, seconds: float) -> list[WorkerStarted | WorkerExited]:
        """Its reports; waits up to `seconds` for one."""
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return []
        data = b""
        with suppress(BlockingIOError):
            while part := os.read(self._answers, 65536):
                data += part
            code = self._process.wait(EXIT_SECONDS)
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise ForkServerLost(f"the fork server {how}", f"its log: {self.log}")
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [one for line in lines if (one := _report(json.loads(line))) is not None]


def _report(answer: dict[str, Any]) -> WorkerStarted | WorkerExited | None:
    if "started" in answer:
        return WorkerStarted(answer["started"], answer["pid"])
    if "ended" in answer:
        return WorkerExited(answer["ended"], answer["code"], answer.get("words", ""))
    return None
