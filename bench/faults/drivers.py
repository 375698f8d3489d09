"""Ray Train and Monarch under test: a driver starts the workers, and starts them again."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from bench.faults.agents import HERE, environment_of
from bench.faults.order import NUM_SAMPLES
from bench.faults.scenarios import Scenario
from bench.faults.system import Note, all_take_part, free_port, kill, lines_of_steps, notes
from support.fault_judge import Trained, redone_steps

END_SECONDS = 30.0


class Driven:
    """One worker a machine. The machines themselves, and the driver, are never struck."""

    driver = ""
    """Its script."""

    def __init__(self, folder: Path, scenario: Scenario, binaries: Path) -> None:
        assert scenario.workers_each == 1, f"{scenario.name}: a machine here is one worker"
        self.folder, self.scenario = folder, scenario
        self.python = str(binaries / "python")
        self.processes = [self.start("driver", HERE / self.driver, *self.arguments())]

    def start(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        with (self.folder / f"log-{name}").open("ab") as log:
            return subprocess.Popen(
                [self.python, *map(str, words)],
                env=os.environ | environment_of(self.folder) | self.environment(),
                stdout=log,
                stderr=log,
            )

    def arguments(self) -> tuple[object, ...]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        raise NotImplementedError

    def notes(self) -> list[Note]:
        return notes(self.folder)

    def lines(self) -> list[Trained]:
        return lines_of_steps(self.notes())

    def num_samples(self) -> int:
        return NUM_SAMPLES

    def redone_steps(self) -> int:
        return redone_steps(self.lines())

    def is_whole(self) -> bool:
        return all_take_part(self.notes(), self.scenario.workers)

    def strike(self, machines: tuple[int, ...]) -> tuple[float, int]:
        alive = sorted({one.pid for one in self.notes() if psutil.pid_exists(one.pid)})
        return kill([alive[machine] for machine in machines if machine < len(alive)])

    def keep(self) -> None:
        assert all(one.poll() is None for one in self.processes), f"ended: see {self.folder}"

    def settings(self) -> dict[str, Any]:
        raise NotImplementedError

    def end(self) -> None:
        below = []
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                below += psutil.Process(process.pid).children(recursive=True)
            process.terminate()
        _, late = psutil.wait_procs(below, END_SECONDS)
        for one in late:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        for process in self.processes:
            process.kill()
            process.wait()


class Ray(Driven):
    """An elastic group, which restarts whole, and grows again when it finds room."""

    driver = "ray_elastic_driver.py"

    def arguments(self) -> tuple[object, ...]:
        return self.scenario.workers, self.scenario.period_seconds

    def environment(self) -> dict[str, str]:
        return {
            "RAY_TRAIN_V2_ENABLED": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # default: 2
        }

    def settings(self) -> dict[str, Any]:
        interval = None
        with suppress(FileNotFoundError):
            interval = int((self.folder / "interval").read_text())
        return {
            "num_workers": f"1 to {self.scenario.workers}",
            "elastic_resize_monitor_interval_s": 2,
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": 0.5,
            "checkpoint": f"every {interval} steps",
        }


class RayTorchft(Ray):
    """With its TorchftConfig: one worker is replaced, the others continue."""

    driver = "ray_torchft_driver.py"
    heartbeat_milliseconds, join_milliseconds, gloo_seconds = 1500, 10000, 2

    def arguments(self) -> tuple[object, ...]:
        limits = self.heartbeat_milliseconds, self.join_milliseconds, self.gloo_seconds
        return self.scenario.workers, *limits

    def settings(self) -> dict[str, Any]:
        return {
            "heartbeat_timeout_ms": self.heartbeat_milliseconds,
            "join_timeout_ms": self.join_milliseconds,
            "gloo_timeout_seconds": self.gloo_seconds,
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": 0.5,
            "checkpoint": "model every 100 steps",
        }


class Monarch(Driven):
    """A host process for each worker, which is never struck; the driver is the one owner."""

    driver = "monarch_driver.py"

    def __init__(self, folder: Path, scenario: Scenario, binaries: Path) -> None:
        self.addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(scenario.workers)]
        super().__init__(folder, scenario, binaries)
        loop = (
            "from monarch.actor import run_worker_loop_forever as run; run(address={!r}, ca={!r})"
        )
        for number, address in enumerate(self.addresses):
            code = loop.format(address, "trust_all_connections")
            self.processes.append(self.start(f"host-{number}", "-c", code))

    def arguments(self) -> tuple[object, ...]:
        return tuple(self.addresses)

    def environment(self) -> dict[str, str]:
        return {"HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY": "500ms"}

    def settings(self) -> dict[str, Any]:
        return {"supervision_poll_frequency": "500 ms", "checkpoint": "none"}
