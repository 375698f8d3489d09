"""Headway under test, as CPUs run it and as GPUs would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.faults.order import BATCH
from bench.faults.scenarios import Scenario
from bench.faults.system import kill
from bench.losses import write_run
from headway.clock import seconds_of
from headway.state.ledger import verify_ledger
from support.fault_judge import Trained
from support.live import LiveRun

SETTINGS = (
    "name=faults",
    'model.config={"n_layer": 4, "n_head": 4, "n_embd": 256, "n_positions": 128}',
    "data.sequence_length=128",
    f"batch.global={BATCH}",
)


class Headway:
    """Survivors continue. One launcher plays all machines, and starts again what ends."""

    elastic = "live"

    def save_interval(self) -> str:
        return "5 min"  # no fault here goes back to one

    def __init__(self, folder: Path, scenario: Scenario, binaries: Path) -> None:
        write_run(folder)
        self.scenario = scenario
        own = (
            f"batch.micro={BATCH // scenario.workers // 2}",
            f"resources.accelerators=cpu:{scenario.workers_each}",
            f"elastic={self.elastic}",
            f"checkpoint.every={self.save_interval()}",
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
        return kill(pids)

    def keep(self) -> None:
        pass

    def settings(self) -> dict[str, Any]:
        return {"elastic": self.elastic, "checkpoint": f"every {self.save_interval()}"}

    def end(self) -> None:
        with self.run:
            if self.run.process.poll() is None:
                self.run.stop()
                self.run.require_exact()


class HeadwayRestart(Headway):
    """All workers restart from the newest checkpoint: the only way on accelerators."""

    elastic = "restart"

    def save_interval(self) -> str:
        return f"{SAVE_STEPS[self.scenario.period_seconds]} steps"


SAVE_STEPS = {60.0: 6, 15.0: 3}
"""By the time between two faults: what torchrun's workers find by Young's rule."""
