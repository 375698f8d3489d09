"""The checks of a proof: runs of the real program, and what their run directories must show."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from headway.data.tiny_stories import write_text
from headway.prove.devices import Devices
from headway.prove.judge import (
    ProofFailed,
    pause_at_change,
    require_equal,
    require_learning,
    require_lost,
    require_resumed,
    require_same_loss,
    require_whole_ledger,
)
from headway.prove.program import POLL_SECONDS, Command, Program
from headway.prove.report import CheckResult
from headway.prove.speed import Baseline, SpeedTrials
from headway.spec.resolve import Hardware
from headway.state.checkpoints import steps_saved
from headway.state.rewinds import step_after
from headway.state.run_directory import RunDirectory

HELD_OUT = "held-out"
# A constant learning rate: then half a run is the same as the first half of a whole one.
RUN_FILE = """\
version: 1
name: {name}
extends: tiny
train_for: {steps} steps
schedule: {{type: constant, warmup: 4 steps}}
precision: fp32
elastic: restart
threads: 1
track: []
evaluation: {{every: {steps} steps}}
checkpoint: {{every: {save_every} steps}}
"""
ALONE, KILLED, MOVED = "alone", "killed", "moved"
Step = dict[str, Any]


class Checks:
    """Runs on `devices`, in the folder of `program`."""

    def __init__(self, program: Program, devices: Devices, hardware: Hardware) -> None:
        self.program = program
        self.devices = devices
        self._trials = SpeedTrials(program, devices, hardware, self._directory(ALONE))
        self._alone: list[Step] | None = None

    def results(self) -> Iterator[CheckResult]:
        """One after the other, each as soon as it is known."""
        counts = self.devices.worker_counts
        most = counts[-1]
        write_text(self.program.folder / "data")
        yield self._result("one worker learns", self._learns)
        for workers in counts[1:]:
            yield self._equal(workers, sharded=False)
            yield self._equal(workers, sharded=True)
        yield self._result(f"one of {most} workers killed: resumes, ledger exact", self._killed)
        if most > 1:
            title = f"saved by {most} workers, sharded; restored on {most // 2}, whole"
            yield self._result(title, self._moved)
        else:
            for title in ("equal losses on several workers", "restored on other workers"):
                yield CheckResult(name=title, outcome="not run", figure="needs 2 devices")
        yield self._result("export: the same loss in transformers", self._exported)
        yield from self._rows("speed beside a bare loop", lambda: self._trials.measure(1, ["bare"]))
        workers, title = self._trials.most_workers, "speed beside DDP and FSDP2"
        yield from self._rows("a run beside its plan", lambda: self._trials.beside_plan(workers))
        if workers > 1:
            both: list[Baseline] = ["ddp", "fsdp2"]
            yield from self._rows(title, lambda: self._trials.measure(workers, both))
        else:
            yield CheckResult(name=title, outcome="not run", figure="needs 2 devices")

    def _result(self, name: str, check: Callable[[], str]) -> CheckResult:
        began = self.program.clock.monotonic()
        try:
            outcome, figure = "passed", check()
        except ProofFailed as failed:
            outcome, figure = "failed", str(failed)
        seconds = round(self.program.clock.monotonic() - began, 1)
        return CheckResult.model_validate(
            {"name": name, "outcome": outcome, "figure": figure, "seconds": seconds}
        )

    def _rows(
        self, name: str, measured: Callable[[], Iterable[CheckResult]]
    ) -> Iterator[CheckResult]:
        """Yield the rows as they come, then a failed one if the rest fails."""
        clock = self.program.clock
        began = clock.monotonic()
        try:
            for row in measured():
                yield row.model_copy(update={"seconds": round(clock.monotonic() - began, 1)})
                began = clock.monotonic()
        except ProofFailed as failed:
            seconds = round(clock.monotonic() - began, 1)
            yield CheckResult(name=name, outcome="failed", figure=str(failed), seconds=seconds)

    def _equal(self, workers: int, sharded: bool) -> CheckResult:
        how = "sharded" if sharded else "replicated"

        def check() -> str:
            name = f"{how}-{workers}"
            self._write(name)
            self._train(name, workers, "--set", f"shard={'node' if sharded else 'none'}")
            return self._require_as_alone(name)

        return self._result(f"equal losses on {workers} workers, {how}", check)

    def _learns(self) -> str:
        self._write(ALONE)
        self._train(ALONE, 1)
        steps = self._directory(ALONE).steps()
        figure = require_learning(steps, self.devices.num_steps)
        self._alone = steps
        return figure

    def _killed(self) -> str:
        self._write(KILLED)
        directory, workers = self._directory(KILLED), self.devices.worker_counts[-1]
        with self.program.started(
            *self._run_words(KILLED, workers), environment=self.devices.environment(workers)
        ) as run:
            killed_at = self._kill_last_worker(run, directory, workers)
            run.wait()
        require_lost(directory.history())
        figure = require_resumed(directory.history(), f"killed after step {killed_at}")
        pause = pause_at_change(directory.metrics.read()[0])
        return (
            f"{figure}; {pause:.1f} s without a step; {self._ledger(KILLED)}; "
            f"{self._require_as_alone(KILLED)}"
        )

    def _kill_last_worker(self, run: Command, directory: RunDirectory, workers: int) -> int:
        """After a step that is not saved, once another is; returns that step."""
        while run.is_running():
            step = step_after(directory.metrics.last() or {"rewind": 0})
            saved = steps_saved(directory) if step else []
            if saved and saved[-1] < step < self.devices.num_steps:
                pid = last_worker_pid(directory, workers)
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
                    return step
            self.program.clock.sleep(POLL_SECONDS)
        run.wait()
        raise ProofFailed("the run ended before one of its workers could be killed")

    def _moved(self) -> str:
        most, half = self.devices.worker_counts[-1], self.devices.num_steps // 2
        self._write(MOVED)
        self._train(MOVED, most, "--set", "shard=node", "--set", f"train_for={half} steps")
        self._train(MOVED, most // 2, "--set", "shard=none", "--extend")
        starts = [one for one in self._directory(MOVED).history() if one["event"] == "started"]
        if starts[-1]["resumed_from"] != half or starts[-1]["workers"] != most // 2:
            raise ProofFailed(f"it did not resume from step {half} on {most // 2} workers")
        return f"resumed from step {half}; {self._ledger(MOVED)}; {self._require_as_alone(MOVED)}"

    def _exported(self) -> str:
        self._require_alone()
        self.program.headway("export", ALONE, "--into", "export")
        location = self._directory(ALONE).location
        found = self.program.module("headway.train.export_check", "export", location, HELD_OUT)
        expected = self._directory(ALONE).evaluations.read()[0][-1]["loss"]
        return require_same_loss(found["loss"], expected, self.devices.tolerance)

    def _write(self, name: str) -> None:
        steps = self.devices.num_steps
        content = RUN_FILE.format(name=name, steps=steps, save_every=steps // 4)
        (self.program.folder / f"{name}.yaml").write_text(content)

    def _run_words(self, name: str, workers: int, *options: str) -> list[str]:
        return ["run", f"{name}.yaml", *self.devices.options(workers), *options]

    def _train(self, name: str, workers: int, *options: str) -> None:
        words = self._run_words(name, workers, *options)
        self.program.headway(*words, environment=self.devices.environment(workers))

    def _ledger(self, name: str) -> str:
        verdict = json.loads(self.program.headway("ledger", "verify", name, "--json"))
        return require_whole_ledger(verdict, self.devices.num_steps)

    def _require_alone(self) -> list[Step]:
        if self._alone is None:
            raise ProofFailed("there is no run of one worker to compare with")
        return self._alone

    def _require_as_alone(self, name: str) -> str:
        steps = self._directory(name).steps()
        return require_equal(steps, self._require_alone(), self.devices.tolerance, "one worker")

    def _directory(self, name: str) -> RunDirectory:
        return RunDirectory(self.program.folder / "runs" / name)


def last_worker_pid(directory: RunDirectory, workers: int) -> int | None:
    """Of the worker with the highest rank, if it is alive and a worker of this run."""
    pids = [
        event["pid"]
        for event in directory.launcher.read()[0]
        if event["event"] == "worker" and event["local_rank"] == workers - 1
    ]
    try:
        command = Path(f"/proc/{pids[-1]}/cmdline").read_bytes() if pids else b""
    except OSError:
        return None
    return pids[-1] if directory.location.encode() in command.split(b"\0") else None
