"""torchrun and torchft under test: an agent process of torchrun on every machine."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from bench.faults.order import NUM_SAMPLES
from bench.faults.scenarios import Scenario
from bench.faults.system import (
    Note,
    all_take_part,
    free_port,
    kill,
    lines_of_parts,
    lines_of_steps,
    notes,
)
from support.fault_judge import Trained, redone_steps

HERE = Path(__file__).parent


def environment_of(folder: Path) -> dict[str, str]:
    return {
        "FAULTS_FOLDER": str(folder),
        "PYTHONPATH": str(HERE.parents[1]),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


class Agents:
    """A process of torchrun on every machine, which starts workers and starts them again."""

    worker = ""
    """Its script."""

    def __init__(self, folder: Path, scenario: Scenario, binaries: Path) -> None:
        self.folder, self.scenario, self.binaries = folder, scenario, binaries
        self.torchrun = str(binaries / "torchrun")
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()
        self.ports = [free_port() for _ in range(scenario.workers)]
        self.keep()

    def commands(self) -> dict[str, list[str]]:
        """By name; those of machine 1 begin with `1/`."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return environment_of(self.folder)

    def keep(self) -> None:
        for name, command in self.commands().items():
            if name not in self.agents or self.agents[name].poll() is not None:
                with (self.folder / f"log-{name.replace('/', '-')}").open("ab") as log:
                    self.agents[name] = subprocess.Popen(
                        command, env=os.environ | self.environment(), stdout=log, stderr=log
                    )

    def notes(self) -> list[Note]:
        return notes(self.folder)

    def lines(self) -> list[Trained]:
        return lines_of_parts(self.notes())

    def num_samples(self) -> int:
        return NUM_SAMPLES

    def redone_steps(self) -> int:
        return redone_steps(self.lines())

    def is_whole(self) -> bool:
        return all_take_part(self.notes(), self.scenario.workers)

    def strike(self, machines: tuple[int, ...]) -> tuple[float, int]:
        hit = [name for name in self.agents if name.split("/")[0] in map(str, machines)]
        workers = [pid for name in hit for pid in self._workers(self.agents[name].pid)]
        if not self.scenario.loses_machines:
            return kill(workers)
        at, _ = kill([*(self.agents[name].pid for name in hit), *workers])
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
            kill(workers)


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


class TorchftSampler(Agents):
    """A replica group for each worker, under an agent of its own, and a lighthouse that is never
    struck. With torchft's own sampler, as in its example, but shorter timeouts."""

    worker = "torchft_sampler_worker.py"
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


class Torchft(TorchftSampler):
    """Those that take part divide the batch of each step among themselves, by their rank."""

    worker = "torchft_rank_worker.py"

    def lines(self) -> list[Trained]:
        return lines_of_steps(self.notes())

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "checkpoint": "model every 100 steps"}


class TorchftDefault(Torchft):
    """With the timeouts that are its default, or in its example."""

    heartbeat_milliseconds = 5000
    gloo_seconds = 5
    quorum_retries = 0
