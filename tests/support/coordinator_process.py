"""A real `headway coordinator` for tests and benches: started, killed, started again, asked."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from headway.member.coordinator.rules import Rules
from headway.member.coordinator.settings import CoordinatorSettings, write_settings
from headway.member.protocol.keys import new_key, read_key
from support.commands import HEADWAY
from support.s3 import free_port

ALONE = Rules()
"""One worker makes a run, and others are spares."""


class CoordinatorProcess:
    def __init__(
        self, folder: Path, rules: Rules = ALONE, *, run: str = "it", key: str = ""
    ) -> None:
        self.folder, self.run = folder, run
        folder.mkdir(parents=True, exist_ok=True)
        key_file = folder / "key"
        if not key_file.exists():
            key_file.touch(0o600)
            key_file.write_text(key or new_key())
        self.key = read_key(key_file)
        self.record = folder / "record"
        self.address = ("127.0.0.1", free_port())
        settings = CoordinatorSettings(
            run=run,
            record=str(self.record),
            key=str(key_file),
            rules=rules,
            listen=f"127.0.0.1:{self.address[1]}",
            http="127.0.0.1:0",
        )
        write_settings(settings, folder / "settings.json")
        self.command = [*HEADWAY, "coordinator", "--settings", str(folder / "settings.json")]
        self.log = folder / "log"
        self.process: subprocess.Popen[str] | None = None
        self.start_seconds = 0.0

    def start(self) -> CoordinatorProcess:
        began = time.monotonic()
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        self.start_seconds = time.monotonic() - began
        self.facts: dict[str, Any] = json.loads(line)
        return self

    async def start_aside(self) -> CoordinatorProcess:
        """While members of this process go on."""
        return await asyncio.to_thread(self.start)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def end(self, seconds: float = 10.0) -> int:
        """Politely; its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(seconds)

    def __enter__(self) -> CoordinatorProcess:
        return self if self.process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)

    @property
    def usage(self) -> psutil.Process:
        assert self.process is not None
        return psutil.Process(self.process.pid)

    @property
    def rss_bytes(self) -> int:
        return int(self.usage.memory_info().rss)

    @property
    def cpu_seconds(self) -> float:
        times = self.usage.cpu_times()
        return float(times.user + times.system)

    async def get(self, path: str) -> bytes:
        async with asyncio.timeout(20):
            host, port = self.facts["http"].split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET {path} HTTP/1.1\r\nHost: it\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
        head, _, content = answer.partition(b"\r\n\r\n")
        assert b" 200 " in head.splitlines()[0], head
        return content

    async def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.get("/state"))
        return found

    async def count(self, name: str) -> int:
        """How often something has happened since it started."""
        found: int = (await self.state())["counts"][name]
        return found

    async def lag_seconds(self) -> float:
        text = (await self.get("/metrics")).decode()
        (value,) = (
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "headway_coordinator_lag_seconds"
        )
        return value
