"""The systems under test: each trains the same model on the machines of a scenario, and is struck
and watched from outside."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import psutil

from bench.faults.scenarios import Scenario
from bench.losses import write_run
from headway.clock import seconds_of
from headway.state.ledger import verify_ledger
from support.fault_judge import Trained, redone_steps
from support.live import LiveRun

HERE = Path(__file__).parent
SAMPLES_OF_OTHERS = 1024
"""NUM_SAMPLES in trainee.py, which needs torch."""
BATCH = 16
SAVE_MINUTES = 5
SETTINGS = (
    "name=faults",
    'model.config={"n_layer": 4, "n_head": 4, "n_embd": 256, "n_positions": 128}',
    "data.sequence_length=128",
    f"batch.global={BATCH}",
    f"checkpoint.every={SAVE_MINUTES}min",
)


class System(Protocol):
    def __init__(self, folder: Path, scenario: Scenario, binaries: Path) -> None: ...

    def lines(self) -> list[Trained]:
        """Steps committed so far."""
        ...

    def num_samples(self) -> int:
        """Samples of an epoch."""
        ...

    def redone_steps(self) -> int:
        """Steps that were committed, and had to be committed again."""
        ...

    def is_whole(self) -> bool:
        """Whether all workers took part in the newest step."""
        ...

    def strike(self, machines: tuple[int, ...]) -> tuple[float, int]:
        """Kills all workers there: when, and how many."""
        ...

    def keep(self) -> None:
        """As whatever runs the machines does: starts again what has ended there."""
        ...

    def settings(self) -> dict[str, Any]:
        """What a reader needs to know of it."""
        ...

    def end(self) -> None: ...


class Headway:
    """One launcher plays all machines, and starts again what ends."""

    def __init__(self, folder: Path, scenario: Scenario, binaries: Path) -> None:
        write_run(folder)
        self.scenario = scenario
        own = (
            f"batch.micro={BATCH // scenario.workers // 2}",
            f"resources.accelerators=cpu:{scenario.workers_each}",
        )
        options = [f"--set={one}" for one in (*SETTINGS, *own)]
        self.run = LiveRun(folder, "faults", scenario.machines, *options)

    def lines(self) -> list[Trained]:
        directory = self.run.directory
        if not Path(directory.location).exists():
            return []
        positions = {one["step"]: one for one in directory.ledger.read()[0] if "first" in one}
        epoch = self.num_samples()
        found = []
        for line in directory.steps():
            if taken := positions.get(line["step"]):
                order = range(taken["first"], taken["first"] + taken["count"])
                samples = tuple(divmod(position, epoch) for position in order)
                at = seconds_of(line["time"])
                found.append(Trained(at, line["step"], line["generation"], 0, samples))
        return found

    def num_samples(self) -> int:
        """The order is a permutation of an epoch, so positions in it stand for samples."""
        begun = (line for line in self.run.directory.ledger.read()[0] if "begin" in line)
        return int(next(begun, {"samples": 1})["samples"])

    def redone_steps(self) -> int:
        return verify_ledger(self.run.directory.ledger.read()[0]).redone

    def is_whole(self) -> bool:
        assert self.run.process.poll() is None, self.run.end()
        last = self.run.directory.ledger.last() or {}
        return last.get("members") == self.scenario.workers

    def strike(self, machines: tuple[int, ...]) -> tuple[float, int]:
        pids = [pid for (node, _), pid in self.run.workers().items() if node in machines]
        return _kill(pids)

    def keep(self) -> None:
        pass

    def settings(self) -> dict[str, Any]:
        return {"elastic": "live", "checkpoint": f"every {SAVE_MINUTES} min"}

    def end(self) -> None:
        with self.run:
            if self.run.process.poll() is None:
                self.run.stop()
                self.run.require_exact()


class Agents:
    """A process of torchrun on every machine, which starts workers and starts them again."""

    worker = ""
    """Its script."""

    def __init__(self, folder: Path, scenario: Scenario, binaries: Path) -> None:
        self.folder, self.scenario, self.binaries = folder, scenario, binaries
        self.torchrun = str(binaries / "torchrun")
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.port = _free_port()
        self.ports = [_free_port() for _ in range(scenario.workers)]
        self.keep()

    def commands(self) -> dict[str, list[str]]:
        """By name; those of machine 1 begin with `1/`."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {
            "FAULTS_FOLDER": str(self.folder),
            "PYTHONPATH": str(HERE.parents[1]),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }

    def keep(self) -> None:
        for name, command in self.commands().items():
            if name not in self.agents or self.agents[name].poll() is not None:
                with (self.folder / f"log-{name.replace('/', '-')}").open("ab") as log:
                    self.agents[name] = subprocess.Popen(
                        command, env=os.environ | self.environment(), stdout=log, stderr=log
                    )

    def lines(self) -> list[Trained]:
        return list(self._lines())

    def _lines(self) -> Iterator[Trained]:
        for path in self.folder.glob("part-*.jsonl"):
            for line in path.read_text().splitlines():
                with suppress(json.JSONDecodeError):  # half of one, at a kill
                    at, step, generation, part, samples = json.loads(line)
                    yield Trained(at, step, generation, part, tuple(map(tuple, samples)))

    def num_samples(self) -> int:
        return SAMPLES_OF_OTHERS

    def redone_steps(self) -> int:
        return redone_steps(self.lines())

    def is_whole(self) -> bool:
        lines = self.lines()
        newest = max((line.step for line in lines), default=0)
        parts = {line.part for line in lines if line.step == newest - 1}
        is_fresh = any(time.time() - line.time < 10 for line in lines)
        return is_fresh and len(parts) == self.scenario.workers

    def strike(self, machines: tuple[int, ...]) -> tuple[float, int]:
        hit = [name for name in self.agents if name.split("/")[0] in map(str, machines)]
        workers = [pid for name in hit for pid in self._workers(self.agents[name].pid)]
        if not self.scenario.loses_machines:
            return _kill(workers)
        at, _ = _kill([*(self.agents[name].pid for name in hit), *workers])
        for name in hit:
            self.agents[name].wait()
        return at, len(workers)

    def _workers(self, agent: int) -> list[int]:
        found = []
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(agent).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if any(self.worker in word for word in child.cmdline()):
                        found.append(child.pid)
        return found

    def settings(self) -> dict[str, Any]:
        raise NotImplementedError

    def end(self) -> None:
        for agent in self.agents.values():
            workers = self._workers(agent.pid)
            agent.kill()
            agent.wait()
            _kill(workers)


class Torchrun(Agents):
    """All machines have to be there: another one is at once, and none waits for more. Its store is
    a process of its own, which is never struck."""

    worker = "torchrun_worker.py"
    rendezvous = ("keep_alive_interval=1", "keep_alive_max_attempt=3", "is_host=0")

    def commands(self) -> dict[str, list[str]]:
        scenario = self.scenario
        store = (
            "import time; from torch.distributed import TCPStore; "
            f"store = TCPStore('127.0.0.1', {self.port}, is_master=True, wait_for_workers=False); "
            "time.sleep(10**6)"
        )
        command = [
            self.torchrun,
            f"--nnodes={scenario.machines}",
            f"--nproc-per-node={scenario.workers_each}",
            "--max-restarts=1000000",
            "--monitor-interval=0.1",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{self.port}",
            f"--rdzv-conf={','.join(self.rendezvous)}",
            "--rdzv-id=faults",
            "--local-addr=127.0.0.1",
            str(HERE / self.worker),
            str(scenario.period_seconds),
        ]
        agents = {f"{machine}/agent": command for machine in range(scenario.machines)}
        return {"store": [str(self.binaries / "python"), "-c", store], **agents}

    def environment(self) -> dict[str, str]:
        # Else workers of one round may read the addresses of the round before.
        return {**super().environment(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def settings(self) -> dict[str, Any]:
        options = self.commands()["0/agent"][1:-2]
        chosen = [one for one in options if "127.0.0.1" not in one]
        interval = None
        with suppress(FileNotFoundError):
            interval = int((self.folder / "interval").read_text())
        return {"options": " ".join(chosen), "checkpoint": f"every {interval} steps"}


class Torchft(Agents):
    """A replica group for each worker, under an agent of its own, and a lighthouse that is never
    struck. With shorter timeouts than the default and its example have."""

    worker = "torchft_worker.py"
    heartbeat_milliseconds = 1500
    join_milliseconds = 10000  # of its README
    gloo_seconds = 2
    quorum_retries = 10

    def commands(self) -> dict[str, list[str]]:
        workers = self.scenario.workers
        lighthouse = [
            *(str(self.binaries / "torchft_lighthouse"), "--bind", f"0.0.0.0:{self.port}"),
            *("--min_replicas", "1", "--quorum_tick_ms", "100"),
            *("--join_timeout_ms", str(self.join_milliseconds)),
            *("--heartbeat_timeout_ms", str(self.heartbeat_milliseconds)),
        ]
        agents = {}
        for part in range(workers):
            machine = part // self.scenario.workers_each
            agents[f"{machine}/group-{part}"] = [
                self.torchrun,
                *("--nnodes=1", "--nproc-per-node=1", "--max-restarts=1000000"),
                *("--monitor-interval=0.1", f"--master-port={self.ports[part]}"),
                str(HERE / self.worker),
                *map(str, (part, workers, self.gloo_seconds, self.quorum_retries)),
            ]
        return {"lighthouse": lighthouse, **agents}

    def environment(self) -> dict[str, str]:
        address = f"http://127.0.0.1:{self.port}"
        return {**super().environment(), "TORCHFT_LIGHTHOUSE": address}

    def settings(self) -> dict[str, Any]:
        return {
            "heartbeat_timeout_ms": self.heartbeat_milliseconds,
            "join_timeout_ms": self.join_milliseconds,
            "gloo_timeout_seconds": self.gloo_seconds,
            "quorum_retries": self.quorum_retries,
            "checkpoint": "loader every step, model every 100",
        }


class TorchftDefault(Torchft):
    """With the timeouts that are its default, or in its example."""

    heartbeat_milliseconds = 5000
    gloo_seconds = 5
    quorum_retries = 0


SYSTEMS: dict[str, type[System]] = {
    "headway": Headway,
    "torchrun": Torchrun,
    "torchft": Torchft,
    "torchft-default": TorchftDefault,
}


def _kill(pids: list[int]) -> tuple[float, int]:
    """When, and how many there were."""
    at, killed = time.time(), 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return at, killed


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
