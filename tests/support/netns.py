"""A run whose workers and coordinator are in network namespaces of their own, made here and removed
again: one can be cut off without a word, and mended. Needs root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from headway.clock import SystemClock
from headway.launch.fork_server import COMMAND, ForkServerProcess, WorkerExited, WorkerStarted
from headway.member.coordinator.rules import Rules
from headway.member.coordinator.settings import CoordinatorSettings, write_settings
from headway.member.protocol.keys import new_key
from headway.spec.resolve import Resolved
from headway.state.run_directory import Journal, RunDirectory
from support.chains import LAUNCH, launched
from support.commands import HEADWAY
from support.live import LiveRun
from support.stolen_time import Deadline

MIDDLE = "headway-middle"
ADDRESS = "10.77.0"
PORT = 7700
NOBODY = "02:00:00:00:00:01"
"""The hardware address of no device: what is sent there is lost without a word."""


def _ip(*words: str, inside: str | None = None) -> None:
    within = ["ip", "netns", "exec", inside] if inside else []
    subprocess.run([*within, "ip", *words], check=True, capture_output=True)


def _namespace(node: int) -> str:
    return f"headway-node-{node}"


class Cut:
    """While it lasts nothing gets to or from a node; nobody is told."""

    def __init__(self, node: int) -> None:
        self.port = f"port{node}"

    def __enter__(self) -> None:
        _ip("link", "set", self.port, "nomaster", inside=MIDDLE)

    def __exit__(self, *_: object) -> None:
        _ip("link", "set", self.port, "master", "bridge", inside=MIDDLE)


class Unreached:
    """While it lasts nothing gets from the coordinator to a node or back; nobody is told, and the
    node and its peers reach each other."""

    def __init__(self, node: int) -> None:
        self.ends = (
            (_namespace(node), f"{ADDRESS}.1", "eth0"),
            (MIDDLE, f"{ADDRESS}.{node + 10}", "bridge"),
        )

    def __enter__(self) -> None:
        for inside, address, device in self.ends:
            where = (address, "lladdr", NOBODY, "dev", device, "nud", "permanent")
            _ip("neigh", "replace", *where, inside=inside)

    def __exit__(self, *_: object) -> None:
        for inside, address, device in self.ends:
            _ip("neigh", "delete", address, "dev", device, inside=inside)


class NetworkedRun(LiveRun):
    """One worker a node, each with a fork server in its own namespace; this process is their
    launcher."""

    def __init__(self, resolved: Resolved) -> None:
        self.nodes = resolved.nodes
        self.folder = Path(resolved.folder)
        self.directory = RunDirectory.create(resolved.run_directory, SystemClock())
        launched(self.directory)
        self.directory.write_spec(resolved)
        self.journal = Journal(self.directory.launcher, SystemClock())
        self.pids: dict[str, int] = {}
        self.codes: dict[str, int] = {}
        self._fork_servers: list[ForkServerProcess] = []
        self._lock = os.open(self.directory.local / "lock", os.O_RDWR | os.O_CREAT)
        self._key = self.directory.local / "key"
        self._key.write_text(new_key())
        self._key.chmod(0o600)
        self._make_network()
        self._start_coordinator()
        for node in range(self.nodes):
            self._start(node)

    def __exit__(self, *_: object) -> None:
        for pid in self.pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for server in self._fork_servers:
            server.__exit__()
        self._coordinator.kill()
        self._coordinator.wait()
        os.close(self._lock)
        self._remove_network()

    def look(self) -> None:
        """What the fork servers report."""
        for server in self._fork_servers:
            for report in server.poll(0.0):
                if isinstance(report, WorkerStarted):
                    self.pids[report.name] = report.pid
                elif isinstance(report, WorkerExited):
                    self.codes[report.name] = report.exit_code

    def stop(self) -> str:
        self.look()
        for pid in self.pids.values():
            os.kill(pid, signal.SIGINT)
        deadline = Deadline(60)
        while len(self.codes) < self.nodes:
            assert not deadline.has_passed, self.codes
            self.look()
            time.sleep(0.05)
        assert set(self.codes.values()) == {6}, self.codes
        return ""

    def wait_for_step(self, step: int, seconds: float = 120.0) -> None:
        deadline = Deadline(seconds)
        while self.step < step:
            self.look()
            assert not self.codes, self.codes
            assert not deadline.has_passed, f"waited {seconds:.0f} s for step {step}"
            time.sleep(0.02)

    def coordinator_log(self) -> Path:
        return Path(self.directory.local, "coordinator.log")

    def _start_coordinator(self) -> None:
        log = self.coordinator_log().open("ab")
        settings = CoordinatorSettings(
            run="cut",
            record=str(self.directory.local / "members"),
            key=str(self._key),
            rules=Rules(max_domains=self.nodes),
            listen=f"{ADDRESS}.1:{PORT}",
        )
        file = self.directory.local / "coordinator.json"
        write_settings(settings, file)
        command = [*HEADWAY, "coordinator", "--settings", str(file)]
        self._coordinator = subprocess.Popen(
            ["ip", "netns", "exec", MIDDLE, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        assert self._coordinator.stdout is not None
        json.loads(self._coordinator.stdout.readline())

    def _start(self, node: int) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GOMP_SPINCOUNT": "1000",
            "GLOO_SOCKET_IFNAME": "eth0",
            "HEADWAY_LAUNCH": LAUNCH,
            "HEADWAY_SPEC": str(self.directory.store.path("spec.json")),
            "HEADWAY_RANK": str(node),
            "HEADWAY_DEVICE": "0",
            "HEADWAY_COORDINATOR": f"{ADDRESS}.1:{PORT}",
            "HEADWAY_KEY": str(self._key),
            "HEADWAY_RUN": "cut",
            "HEADWAY_POD": f"node-{node}/0",
        }
        location = self.directory.location
        log = self.directory.log(node, 0)
        command = ("ip", "netns", "exec", _namespace(node), *COMMAND)
        server = ForkServerProcess(location, environment, log, self._lock, command)
        server.start(f"node-{node}", [location], environment, log)
        self._fork_servers.append(server)

    def _make_network(self) -> None:
        self._remove_network()
        _ip("netns", "add", MIDDLE)
        _ip("link", "add", "bridge", "type", "bridge", inside=MIDDLE)
        _ip("addr", "add", f"{ADDRESS}.1/24", "dev", "bridge", inside=MIDDLE)
        _ip("link", "set", "bridge", "up", inside=MIDDLE)
        for node in range(self.nodes):
            name, port = _namespace(node), f"port{node}"
            _ip("netns", "add", name)
            _ip(
                *("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name),
                inside=MIDDLE,
            )
            _ip("link", "set", port, "master", "bridge", "up", inside=MIDDLE)
            _ip("addr", "add", f"{ADDRESS}.{node + 10}/24", "dev", "eth0", inside=name)
            _ip("link", "set", "eth0", "up", inside=name)
            _ip("link", "set", "lo", "up", inside=name)

    def _remove_network(self) -> None:
        for name in (MIDDLE, *(_namespace(node) for node in range(self.nodes))):
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", name)
