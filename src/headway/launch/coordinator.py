"""The coordinator of a run: a process on this machine that is kept alive."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.request import ProxyHandler, build_opener

from headway.clock import Clock
from headway.errors import RunFailed, without_hint
from headway.member.keys import new_key
from headway.member.nodes import GONE

COMMAND = (sys.executable, "-m", "headway.cli.main", "coordinator")
START_SECONDS = 30.0
END_SECONDS = 5.0
ANSWER_SECONDS = 2.0
RESTART_SECONDS = 1.0
"""Between two starts. Training goes on meanwhile; only changes of its members wait."""


class Coordinator:
    def __init__(
        self,
        run: str,
        record: str,
        folder: Path,
        options: Sequence[str],
        clock: Clock,
        key: Path | None = None,
        address: str = "127.0.0.1:0",
    ) -> None:
        """`options`: what the run needs, as on the command line. `folder` is for what it prints,
        and for the key, unless there is one."""
        self.run = run
        self.key = key or _new_key(folder / "key")
        self.log = folder / "coordinator.log"
        self.address = address
        self.http: str | None = None
        """Where it can be looked at."""
        self._options = [
            *("--run", run, "--record", record, "--key", str(self.key)),
            *("--until-eof", *options),
        ]
        self._clock = clock
        self._started_at = 0.0
        self._gone: dict[str, None] = {}
        """In the order in which they went."""

    def start(self, *once: str) -> Self:
        """`once`: options of this start only."""
        self._started_at = self._clock.monotonic()
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [*COMMAND, *self._options, "--listen", self.address, *once],
                stdin=subprocess.PIPE,  # when we die in any way, it reads the end of it
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        self._order(*self._gone)
        return self

    def dismiss(self, place: str) -> None:
        """Whoever comes from there is not let in any more, also after another start."""
        if place not in self._gone:
            self._gone[place] = None
            self._order(place)

    def _order(self, *gone: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has just died, and is told when it is started again
            self._process.stdin.write("".join(f"{GONE} {place}\n" for place in gone).encode())
            self._process.stdin.flush()

    def wait(self) -> Self:
        """Until workers can open their sessions. Afterwards it keeps its address."""
        assert self._process.stdout is not None
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        line = self._process.stdout.readline() if poll.poll(START_SECONDS * 1000) else b""
        if not line:
            self._end()
            words, hint = without_hint(self.log.read_text(errors="replace").strip())
            why = (words or "it said nothing").splitlines()[-1]
            raise RunFailed(f"the coordinator did not start: {why}", hint)
        facts = json.loads(line)
        self.address, self.http = facts["listen"], facts["http"]
        return self

    def page(self, path: str) -> tuple[str, bytes]:
        """What it shows there, and of which type that is."""
        directly = build_opener(ProxyHandler({}))  # a proxy is for the world outside
        with directly.open(f"http://{self.http}{path}", timeout=ANSWER_SECONDS) as answer:
            return answer.headers["Content-Type"], bytes(answer.read())

    def state(self) -> dict[str, Any] | None:
        """None: it is just being started."""
        try:
            found: dict[str, Any] = json.loads(self.page("/state")[1])
        except OSError:
            return None
        return found

    def begin_anew(self) -> None:
        """All members of before have ended: nobody is to be waited for."""
        self._end()
        self.start("--after", "0")

    def keep_alive(self) -> str | None:
        """Starts it again if it has died; how it ended."""
        code = self._process.poll()
        if code is None or self._clock.monotonic() - self._started_at < RESTART_SECONDS:
            return None
        self.start()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _new_key(path: Path) -> Path:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(new_key())
    return path
