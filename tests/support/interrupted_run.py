"""A run directory with interruptions of every kind, written as workers and launchers write it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from headway.clock import SystemClock, stamp
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, resolve
from headway.state.run_directory import RunDirectory

START = 1.8e9


class InterruptedRun:
    """Writes a run step by step; every method advances the clock."""

    def __init__(self, folder: Path, name: str, total_steps: int, lr: float = 1e-3) -> None:
        (folder / f"{name}.yaml").write_text(
            f"version: 1\nname: {name}\nmodel: {{type: gpt2, config: {{vocab_size: 512}}}}\n"
            f"data: {{train: prepared}}\nbatch: {{global: 8, micro: 4}}\n"
            f"train_for: {total_steps} steps\noptimizer: {{lr: {lr}}}\n"
        )
        loaded = load_run(folder / f"{name}.yaml")
        machine = Hardware(cores=2, cuda_devices=0)
        resolved = resolve(
            loaded, machine, nodes=2, parameters=None, train_set="prepared", validation_sets={}
        )
        self.time = START
        self.directory = RunDirectory.create(folder / "runs" / name, SystemClock())
        self.directory.write_spec(resolved)
        self.total, self.step, self.generation, self.workers = total_steps, 0, 0, 2
        self.lr = lr

    def launch(self) -> None:
        self.generation += 1
        self._note("launcher", "launched", generation=self.generation, workers=2, nodes=2)
        self.time += 8.0
        self._begin()
        self._started()

    def restart(self, how: str) -> None:
        """A worker is lost, and all restart from the step that they had."""
        self.lose(how)
        self.time += 2.5
        self.begin_again()

    def lose(self, how: str) -> None:
        """As the launcher notes it."""
        self._note("launcher", "lost", node=1, local_rank=0, how=how)

    def scale(self, nodes: int) -> None:
        self._note("launcher", "scaled", nodes=nodes, before=self.workers)

    def begin_again(self) -> None:
        """All start anew, with the state that they have."""
        self.generation += 1
        self._begin()
        self._started()

    def change(self, reason: str, workers: int, seconds: float) -> None:
        self.time += seconds
        self.generation, self.workers = self.generation + 1, workers
        self._begin()
        self._note(
            *("events", "changed"),
            generation=self.generation,
            step=self.step,
            workers=workers,
            reason=reason,
            seconds=seconds,
            discarded=True,
        )

    def train(self, steps: int, seconds: float = 1.0) -> None:
        for _ in range(steps):
            self.time += seconds
            self.step += 1
            loss = 6 / (1 + self.step / 40) + 0.2 * math.sin(self.step)
            where = {"step": self.step, "generation": self.generation}
            self.directory.metrics.append(
                {
                    **where,
                    "time": stamp(self.time),
                    "loss": loss,
                    "lr": self.lr,
                    "grad_norm": 1 + 0.1 * math.cos(self.step),
                    "seconds": seconds,
                    "data_seconds": 0.0,
                    "tokens_per_second": 128 * self.workers / seconds,
                }
            )
            self.directory.ledger.append(
                {**where, "first": 8 * (self.step - 1), "count": 8, "members": self.workers}
                | {"tokens": 128, "loss": loss, "learned": True}
            )

    def evaluate(self) -> None:
        self.time += 1.0
        self.directory.evaluations.append(
            {
                "step": self.step,
                "set": "held-out",
                "generation": self.generation,
                "loss": 6 / (1 + self.step / 45),
            }
        )

    def end(self, how: str) -> None:
        self._note("events", how, step=self.step)

    def wait(self, seconds: float) -> None:
        self.time += seconds

    def _begin(self) -> None:
        self.directory.ledger.append(
            {"begin": self.generation, "step": self.step, "batch": 8, "samples": 10**9}
            | {"length": 16, "data": "0", "code": None, "writer": self.generation}
        )

    def _started(self) -> None:
        self._note(
            *("events", "started"),
            generation=self.generation,
            resumed_from=self.step or None,
            seconds={"import": 1.0, "build": 0.5, "load": 0.1},
            step=self.step,
            total_steps=self.total,
            tokens_per_step=128,
            parameters=1000,
            workers=self.workers,
            device="cpu",
            no_mfu="",
            versions={"headway": "0.1.0", "torch": "2.15.0"},
        )

    def _note(self, log: str, event: str, **facts: Any) -> None:
        record = {"time": stamp(self.time), "event": event, **facts}
        getattr(self.directory, log).append(record)


def ten_interruptions(folder: Path, name: str = "spot", lr: float = 1e-3) -> InterruptedRun:
    """Ten pauses besides the first start: five changes of members, three restarts, a stop and the
    start after it."""
    run = InterruptedRun(folder, name, 600, lr)
    run.launch()
    run.train(60)
    run.evaluate()
    for number in range(5):
        run.change(f"node-{number}.1/0 is lost: no heartbeat", 1 + number % 3, 0.5 + number)
        run.train(40)
    run.evaluate()
    for _ in range(3):
        run.restart("was killed by SIGKILL")
        run.train(50)
    run.end("stopped")
    run.wait(120)
    run.launch()
    run.train(600 - run.step)
    run.evaluate()
    run.end("finished")
    return run
