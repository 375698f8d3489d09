"""The coordinator of a run as a process on this machine, restarted when it dies."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self
from urllib.request import ProxyHandler, build_opener

from headway.clock import Clock
from headway.errors import RunFailed, without_hint
from headway.member.coordinator.nodes import GONE
from headway.member.coordinator.settings import CoordinatorSettings, write_settings
from headway.member.protocol.keys import new_key

COMMAND = (sys.executable, "-P", "-m", "headway.cli.main", "coordinator")
"""Without the working folder on its path: a `queue.py` there is the user's."""
START_SECONDS = 30.0
END_SECONDS = 5.0
ANSWER_SECONDS = 2.0
RESTART_SECONDS = 1.0
"""Pause between two starts. Training continues meanwhile; only membership changes wait."""


class CoordinatorProcess:
    def __init__(self, settings: CoordinatorSettings, folder: Path, clock: Clock) -> None:
        """`folder`: for its settings and its log."""
        self.key = Path(settings.key)
        self.log = folder / "coordinator.log"
        self.address = settings.listen
        self.http: str | None = None
        """Address of its HTTP pages."""
        self._settings = settings
        self._settings_file = folder / "coordinator.json"
        self._clock = clock
        self._started_at = 0.0
        self._gone: dict[str, None] = {}
        """Dismissed nodes, in order."""

    def start(self, after: int | None = None) -> Self:
        """Starts the process. `after`: as in its settings, for this start only."""
        self._started_at = self._clock.monotonic()
        settings = replace(self._settings, listen=self.address, after=after)
        write_settings(settings, self._settings_file)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [*COMMAND, "--settings", str(self._settings_file)],
                stdin=subprocess.PIPE,  # if we die in any way, it reads end-of-file
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        self._order(*self._gone)
        return self

    def dismiss(self, place: str) -> None:
        """No longer admits workers from this node, even after a restart."""
        if place not in self._gone:
            self._gone[place] = None
            self._order(place)

    def _order(self, *gone: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has just died, and is told when it restarts
            self._process.stdin.write("".join(f"{GONE} {place}\n" for place in gone).encode())
            self._process.stdin.flush()

    def wait(self) -> Self:
        """Waits until workers can open sessions. From then on, the address is fixed."""
        assert self._process.stdout is not None
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        line = self._process.stdout.readline() if poll.poll(START_SECONDS * 1000) else b""
        if not line:
            self._end()
            words, hint = without_hint(self.log.read_text(errors="replace").strip())
            why = (words or "it printed nothing").splitlines()[-1]
            raise RunFailed(f"the coordinator did not start: {why}", hint)
        facts = json.loads(line)
        self.address, self.http = facts["listen"], facts["http"]
        return self

    def page(self, path: str) -> tuple[str, bytes]:
        """Content type and content of one of its pages."""
        directly = build_opener(ProxyHandler({}))  # proxies are for external addresses
        with directly.open(f"http://{self.http}{path}", timeout=ANSWER_SECONDS) as answer:
            return answer.headers["Content-Type"], bytes(answer.read())

    def state(self) -> dict[str, Any] | None:
        """Its `/state`; None while it is starting."""
        try:
            found: dict[str, Any] = json.loads(self.page("/state")[1])
        except OSError:
            return None
        return found

    def restart_without_members(self) -> None:
        """All members have exited: the new coordinator waits for none of them."""
        self._end()
        self.start(after=0)

    def keep_alive(self) -> str | None:
        """Restarts it if it has died; returns how it ended."""
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


def new_key_file(folder: Path) -> Path:
    path = folder / "key"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(new_key())
    return path
