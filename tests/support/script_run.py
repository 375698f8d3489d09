"""A script's run without a launcher: a real coordinator, a real fork server, and nodes that a test
starts, signals and kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from headway.clock import SystemClock
from headway.errors import Exit
from headway.member.coordinator.rules import RESTART_ALONE_SECONDS, Rules
from headway.spec.resolve import Resolved
from headway.spec.run_file import RunFile
from headway.state.rewinds import Record
from headway.state.run_directory import Journal, RunDirectory
from support.chains import LAUNCH, launched
from support.coordinator_process import CoordinatorProcess
from support.stolen_time import Deadline

HURRIED = Path(__file__).with_name("hurried_script_server.py")
RECORD = """\
import os, signal, sys, time
from pathlib import Path

out = Path(os.environ["HEADWAY_OUTPUT"])
rank, world, master = (os.environ[key] for key in ("RANK", "WORLD_SIZE", "MASTER_PORT"))


def until(there):
    while not there():
        time.sleep(0.02)


def note(name, text=""):
    new = out / f".{name}.{rank}"
    new.write_text(text)
    new.rename(out / name)
"""
"""How the scripts of tests begin."""


@dataclass
class StartedWorker:
    name: str
    node: int
    local_rank: int
    log: Path
    pid: int = 0
    code: int | None = None
    words: str = ""

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)


class ScriptRun:
    """Nodes are started again by the test, or by `finish` as a launcher would."""

    def __init__(
        self,
        folder: Path,
        script: str,
        *arguments: str,
        nodes: int = 1,
        ranks: int = 1,
        hurry: tuple[str, ...] = (),
    ) -> None:
        """`hurry`: deadlines of the worker, as MODULE.NAME=SECONDS."""
        self._hurry = hurry
        self.folder, self.nodes, self.ranks = folder, nodes, ranks
        self.workdir, self.output = folder / "code", folder / "output"
        for path in (self.workdir, self.output):
            path.mkdir(parents=True, exist_ok=True)
        (self.workdir / "train.py").write_text(RECORD + script)
        command = list(arguments) or ["python", "train.py"]
        resolved = Resolved(
            name="it",
            run=RunFile(version=1, command=command),
            folder=str(self.workdir),
            run_directory=str(folder / "it"),
            train_set="",
            validation_sets={},
            device="cpu",
            nodes=nodes,
            ranks_per_node=ranks,
            threads=1,
            global_batch=0,
            micro=0,
            sharded=False,
            checkpoint_activations=False,
        )
        clock = SystemClock()
        self.directory = RunDirectory.create(resolved.run_directory, clock)
        launched(self.directory)
        self.directory.write_spec(resolved)
        self.journal = Journal(self.directory.launcher, clock)
        self.journal.note("launched", generation=1, nodes=nodes, workers=nodes * ranks)
        rules = Rules(
            max_domains=64,
            first_domains=nodes,
            domain_workers=ranks,
            node_workers=ranks,
            restarts=True,
            alone_seconds=RESTART_ALONE_SECONDS,
        )
        self.coordinator = CoordinatorProcess(folder / "coordinator", rules)
        self.extra_environment: dict[str, str] = {}
        self.workers: dict[tuple[int, int], StartedWorker] = {}
        """The newest of each place."""
        self._by_name: dict[str, StartedWorker] = {}
        self._starts: dict[int, int] = {}

    def __enter__(self) -> Self:
        self.coordinator.start()
        server = ["-P", str(HURRIED)] if self._hurry else ["-m", "headway.script"]
        with (self.folder / "fork-server.log").open("ab") as log:
            self._server = subprocess.Popen(
                [sys.executable, *server, *self._hurry, self.directory.location],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._server.stdout is not None
        os.set_blocking(self._server.stdout.fileno(), False)
        self._rest = b""
        for node in range(self.nodes):
            self.start(node)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._by_name.values():
            if worker.code is None and worker.pid:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)
        self._server.kill()
        self._server.wait(10)
        self.coordinator.__exit__()

    # What a launcher does

    def start(self, node: int) -> None:
        start = self._starts[node] = self._starts.get(node, 0) + 1
        for local_rank in range(self.ranks):
            name = f"node-{node}.{start}/{local_rank}"
            log = self.folder / f"node-{node}.rank-{local_rank}.{start}.log"
            log.touch()
            worker = StartedWorker(name, node, local_rank, log)
            self.workers[node, local_rank] = self._by_name[name] = worker
            address, port = self.coordinator.address
            environment = {
                **{k: v for k, v in os.environ.items() if not k.startswith("COV_")},
                "PYTHONUNBUFFERED": "1",
                "HEADWAY_LAUNCH": LAUNCH,
                "HEADWAY_SPEC": str(self.directory.store.path("spec.json")),
                "HEADWAY_RANK": str(node * self.ranks + local_rank),
                "HEADWAY_DEVICE": str(local_rank),
                "HEADWAY_STEPS": str(self.folder / f"steps-{node}-{local_rank}-{start}"),
                "HEADWAY_COORDINATOR": f"{address}:{port}",
                "HEADWAY_KEY": str(self.coordinator.folder / "key"),
                "HEADWAY_RUN": "it",
                "HEADWAY_POD": name,
                "HEADWAY_ADDRESS": "127.0.0.1",
                "HEADWAY_WORKDIR": str(self.workdir),
                "HEADWAY_OUTPUT": str(self.output),
                "HEADWAY_SCRATCH": str(self.folder / "scratch"),
                **self.extra_environment,
            }
            request = {
                "start": name,
                "arguments": [self.directory.location],
                "environment": environment,
                "log": str(log),
            }
            assert self._server.stdin is not None
            self._server.stdin.write(json.dumps(request).encode() + b"\n")
            self._server.stdin.flush()

    def poll(self) -> None:
        assert self._server.stdout is not None
        data = self._server.stdout.read() or b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for answer in map(json.loads, lines):
            if "started" in answer:
                self._by_name[answer["started"]].pid = answer["pid"]
            elif "ended" in answer:
                worker = self._by_name[answer["ended"]]
                worker.code, worker.words = answer["code"], answer.get("words", "")

    # What a test asks for

    def wait(self, what: str, look: Any, seconds: float = 90.0) -> Any:
        """The first truthy answer, while exits are noted."""
        deadline = Deadline(seconds)
        while not (found := look()):
            self.poll()
            assert not deadline.has_passed, f"waited {seconds:.0f} s for {what}\n{self.words()}"
            time.sleep(0.02)
        return found

    def wait_for(self, *names: str, seconds: float = 90.0) -> None:
        """Files in the output."""
        for name in names:
            self.wait(name, (self.output / name).exists, seconds)

    def codes(self, seconds: float = 90.0) -> list[int]:
        """Exit codes of all places, in order."""
        workers = [self.workers[place] for place in sorted(self.workers)]
        self.wait("all exits", lambda: all(one.code is not None for one in workers), seconds)
        return [one.code for one in workers if one.code is not None]

    def finish(self, seconds: float = 120.0) -> list[int]:
        """Starts nodes again until none ends with its generation; the codes of the last ones. Each
        code that counts as a loss is in `losses`."""
        self.losses: list[int] = []
        deadline = Deadline(seconds)
        while any(one.code is None or _restarts(one.code) for one in self.workers.values()):
            self.poll()
            assert not deadline.has_passed, self.words()
            for node in {node for node, _ in self.workers}:
                codes = [self.workers[node, rank].code or 0 for rank in range(self.ranks)]
                have_ended = all(
                    self.workers[node, rank].code is not None for rank in range(self.ranks)
                )
                if have_ended and any(map(_restarts, codes)):
                    self.losses += [code for code in codes if code != Exit.GENERATION_OVER]
                    self.start(node)
            time.sleep(0.02)
        return self.codes()

    def signal(self, number: int, *nodes: int) -> None:
        for (node, _), worker in self.workers.items():
            if not nodes or node in nodes:
                self.wait("its start", lambda worker=worker: worker.pid)
                worker.signal(number)

    def events(self, *names: str) -> list[Record]:
        return [one for one in self.directory.events.read()[0] if one["event"] in names]

    def read(self, name: str) -> str:
        return (self.output / name).read_text()

    def words(self) -> str:
        paths = [*sorted(self.folder.glob("*.log")), self.coordinator.log]
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in paths)


def _restarts(code: int) -> bool:
    return code < 0 or code in (Exit.GENERATION_OVER, Exit.PEER_LOST)
