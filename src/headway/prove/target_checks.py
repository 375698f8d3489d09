"""The checks of a proof on a target: normal runs on its nodes, judged by what they recorded."""

from __future__ import annotations

import json
import secrets
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from headway.clock import SystemClock
from headway.data.tiny_stories import write_text
from headway.errors import HeadwayError
from headway.plan.accelerators import find_device
from headway.prove.checks import ALONE, HELD_OUT, MOVED, RUN_FILE
from headway.prove.devices import CPU_STEPS, CPU_TOLERANCE, GPU_TOLERANCE
from headway.prove.judge import (
    ProofFailed,
    pause_at_change,
    require_equal,
    require_learning,
    require_resumed,
    require_same_loss,
    require_whole_ledger,
)
from headway.prove.program import Program
from headway.prove.report import CheckResult, RateResult
from headway.prove.speed import ON_TARGET_CPU, ON_TARGET_GPU, SpeedCase, fastest_precision
from headway.spec.quantities import Accelerators
from headway.state.run_directory import RunDirectory

MICRO, LEAST_MICRO_BATCHES = 4, 4
GPU_STEPS = 1000
"""A pod is deleted between the first save, at a quarter, and the end: seconds on GPUs."""
DELETED = "deleted"
FINISH_SECONDS = 300.0
LOOK_SECONDS = 0.5
CPU_RATE_STEPS, GPU_RATE_STEPS = 12, 100
Found = TypeVar("Found")
Record = dict[str, Any]


@dataclass(frozen=True)
class TargetNodes:
    """The nodes that a proof uses."""

    nodes: int
    accelerators: Accelerators | None
    """Of one node, as the target says; None: one worker on the CPU."""

    @property
    def is_cpu(self) -> bool:
        return self.accelerators is None or self.accelerators.is_cpu

    @property
    def num_workers(self) -> int:
        return self.nodes * (self.accelerators.count if self.accelerators else 1)

    @property
    def tolerance(self) -> float:
        return CPU_TOLERANCE if self.is_cpu else GPU_TOLERANCE

    @property
    def num_steps(self) -> int:
        return CPU_STEPS if self.is_cpu else GPU_STEPS

    @property
    def global_batch(self) -> int:
        """Every worker has a micro-batch; the same batch for one node."""
        return MICRO * max(LEAST_MICRO_BATCHES, self.num_workers)


class ProofTarget(Protocol):
    """What a proof needs of a target besides the commands of `headway`."""

    name: str

    def directory(self, run: str) -> RunDirectory: ...

    def status(self, run: str) -> Record | None:
        """As its coordinator says; None while there is none."""

    def has_finished(self, run: str) -> bool:
        """Whether all of its pods have ended well; raises if the run has failed."""

    def num_machines(self, run: str) -> int:
        """Machines that its pods are on."""

    def delete_last_pod(self, run: str) -> None:
        """With the least grace that Kubernetes has: SIGTERM, and two seconds later SIGKILL."""

    def remove(self, run: str) -> None:
        """All of it, also if it is still running."""


class TargetChecks:
    """Runs on `nodes` of `target`, launched from the folder of `program`."""

    def __init__(self, program: Program, target: ProofTarget, nodes: TargetNodes) -> None:
        self.program = program
        self.target = target
        self.nodes = nodes
        self.rates: list[RateResult] = []
        """Speeds, as far as they got."""
        self.started: Record = {}
        """The event of the first start on all nodes: its versions and its device."""
        self.num_machines = 0
        """Machines that the pods of all nodes were on."""
        self._prefix = f"prove-{secrets.token_hex(2)}"
        self._launched: list[str] = []
        self._alone: list[Record] | None = None

    def results(self) -> Iterator[CheckResult]:
        """One after the other, each as soon as it is known. Deletes every run that it made."""
        nodes = self.nodes.nodes
        write_text(self.program.folder / "data")
        try:
            yield self._result("one node learns", self._learns)
            yield self._equal("none", "replicated")
            yield self._equal("all", "sharded over all nodes")
            title = f"one of {nodes} pods deleted without grace: resumes, ledger exact"
            yield self._result(title, self._deleted)
            title = f"saved by {nodes} nodes, sharded; restored on 1, replicated"
            yield self._result(title, self._moved)
            yield self._result("export: the same loss in transformers", self._exported)
            yield self._result(f"speed on {nodes} nodes", self._measured)
            yield CheckResult(
                name="speed beside a bare loop, DDP and FSDP2",
                outcome="not run",
                figure="not part of a proof on a target: headway prove on one of its machines",
            )
        finally:
            self._remove()

    def _result(self, name: str, check: Callable[[], str]) -> CheckResult:
        clock = self.program.clock
        began = clock.monotonic()
        try:
            outcome, figure = "passed", check()
        except (ProofFailed, HeadwayError, OSError) as failed:
            outcome, figure = "failed", str(failed)
        try:
            self._remove(all_but=self._name(ALONE))
        except (HeadwayError, OSError) as error:
            outcome, figure = "failed", f"{figure}; a run could not be deleted: {error}"
        seconds = round(clock.monotonic() - began, 1)
        return CheckResult.model_validate(
            {"name": name, "outcome": outcome, "figure": figure, "seconds": seconds}
        )

    # Checks

    def _learns(self) -> str:
        self._train(ALONE, 1)
        steps = self._directory(ALONE).steps()
        figure = require_learning(steps, self.nodes.num_steps)
        self._alone = steps
        return figure

    def _equal(self, shard: str, how: str) -> CheckResult:
        def check() -> str:
            self._train(f"equal-{shard}", self.nodes.nodes, "--set", f"shard={shard}")
            return self._require_as_alone(f"equal-{shard}")

        return self._result(f"equal losses on {self.nodes.nodes} nodes, {how}", check)

    def _deleted(self) -> str:
        self._launch(DELETED, self.nodes.nodes)
        step = self._wait_for("a step after a checkpoint", lambda: self._unsaved_step(DELETED))
        self.target.delete_last_pod(self._name(DELETED))
        self._wait_until_finished(DELETED)
        directory = self._directory(DELETED)
        what = f"deleted after step {step} with Kubernetes' 2 s of notice"
        figure = require_resumed(directory.history(), what)
        pause = pause_at_change(directory.metrics.read()[0])
        return (
            f"{figure}; {pause:.1f} s without a step; {self._ledger(DELETED)}; "
            f"{self._require_as_alone(DELETED)}"
        )

    def _unsaved_step(self, run: str) -> int | None:
        """The newest step, if it is not saved and another is."""
        if self.target.has_finished(self._name(run)):
            raise ProofFailed("the run ended before one of its pods could be deleted")
        status = self.target.status(self._name(run))
        if status is None or status["checkpoint_step"] is None:
            return None
        return status["step"] if status["step"] > status["checkpoint_step"] else None

    def _moved(self) -> str:
        half = self.nodes.num_steps // 2
        shorter = ("--set", f"train_for={half} steps")
        self._train(MOVED, self.nodes.nodes, "--set", "shard=all", *shorter)
        self._train(MOVED, 1, "--set", "shard=none", "--extend")
        events = self._directory(MOVED).history()
        starts = [
            (one["resumed_from"], one["workers"]) for one in events if one["event"] == "started"
        ]
        if starts[-1:] != [(half, self.nodes.num_workers // self.nodes.nodes)]:
            raise ProofFailed(f"it did not resume from step {half} on one node")
        return f"resumed from step {half}; {self._ledger(MOVED)}; {self._require_as_alone(MOVED)}"

    def _exported(self) -> str:
        self._require_alone()
        self.program.headway("export", self._name(ALONE), "--into", "export")
        spec = self._directory(ALONE).read_spec()
        # The same set where this machine has it, not where pods do.
        here = spec.model_copy(update={"validation_sets": {HELD_OUT: self._prepared(HELD_OUT)}})
        check = RunDirectory.create(self.program.folder / "export-check", SystemClock())
        check.write_spec(here)
        found = self.program.module(
            "headway.train.export_check", "export", check.location, HELD_OUT
        )
        expected = self._directory(ALONE).evaluations.read()[0][-1]["loss"]
        return require_same_loss(found["loss"], expected, self.nodes.tolerance)

    def _measured(self) -> str:
        """There is no limit on the figures: they are the machines', too."""
        for case in self._cases():
            self._measure(case)
        rates = [f"{one.tokens_per_second:,.0f} ({one.preset})" for one in self.rates]
        return f"tokens/s {', '.join(rates)}"

    def _measure(self, case: SpeedCase) -> None:
        run, steps = case.preset.replace(".", "-"), self._rate_steps
        content = case.run_file(
            self._name(run),
            self._prepared("train"),
            self.nodes.num_workers,
            self._precision(),
            steps,
        )
        self._file(run).write_text(content)
        self._start(run, self.nodes.nodes)
        self._wait_until_finished(run)
        lines = self._directory(run).steps()[steps // 2 :]
        shares = [line["mfu"] for line in lines if "mfu" in line]
        self.rates.append(
            RateResult(
                preset=case.title,
                workers=self.nodes.num_workers,
                tokens_per_second=statistics.median(line["tokens_per_second"] for line in lines),
                mfu=statistics.median(shares) if shares else None,
            )
        )

    def _cases(self) -> list[SpeedCase]:
        if self.nodes.is_cpu or self.nodes.accelerators is None:
            return list(ON_TARGET_CPU)
        device = find_device(self.nodes.accelerators.kind)
        memory = device.memory_gib if device else 15.0
        return [case for case in ON_TARGET_GPU if case.least_gib <= memory]

    @property
    def _rate_steps(self) -> int:
        return CPU_RATE_STEPS if self.nodes.is_cpu else GPU_RATE_STEPS

    def _precision(self) -> str:
        kind = self.nodes.accelerators.kind if self.nodes.accelerators else None
        return fastest_precision(kind, self.nodes.is_cpu)

    # Runs

    def _name(self, run: str) -> str:
        """On the target, where others may prove something, too."""
        return f"{self._prefix}-{run}"

    def _file(self, run: str) -> Path:
        return self.program.folder / f"{run}.yaml"

    def _directory(self, run: str) -> RunDirectory:
        return self.target.directory(self._name(run))

    def _prepared(self, name: str) -> str:
        """The set of that name that the first run has prepared on this machine."""
        found = sorted((self.program.folder / "prepared").glob(f"{name}-*"))
        if not found:
            raise ProofFailed(f"there is no run whose set {name} could be used")
        return str(found[0])

    def _launch(self, run: str, nodes: int, *options: str) -> None:
        steps = self.nodes.num_steps
        content = RUN_FILE.format(name=self._name(run), steps=steps, save_every=steps // 4)
        content += f"batch: {{global: {self.nodes.global_batch}, micro: {MICRO}}}\n"
        self._file(run).write_text(content)
        self._start(run, nodes, *options)

    def _start(self, run: str, nodes: int, *options: str) -> None:
        name = self._name(run)
        if name not in self._launched:
            self._launched.append(name)
        where = ("--on", self.target.name, "--nodes", str(nodes))
        self.program.headway("run", self._file(run).name, *where, *options)

    def _train(self, run: str, nodes: int, *options: str) -> None:
        self._launch(run, nodes, *options)
        if nodes > 1 and not self.num_machines:
            self.num_machines = self.target.num_machines(self._name(run))
        self._wait_until_finished(run)
        if nodes > 1 and not self.started:
            events = self._directory(run).history()
            self.started = next((one for one in events if one["event"] == "started"), {})

    def _wait_until_finished(self, run: str) -> None:
        name = self._name(run)
        self._wait_for(f"run {name} to finish", lambda: self.target.has_finished(name))

    def _wait_for(self, what: str, look: Callable[[], Found | None]) -> Found:
        clock = self.program.clock
        seconds = min(FINISH_SECONDS, self.program.seconds_left)
        deadline = clock.monotonic() + seconds
        while not (found := look()):
            if clock.monotonic() > deadline:
                raise ProofFailed(f"waited {seconds:.0f} s for {what}")
            clock.sleep(LOOK_SECONDS)
        return found

    def _remove(self, all_but: str | None = None) -> None:
        for name in [one for one in self._launched if one != all_but]:
            self.target.remove(name)
            self._launched.remove(name)

    def _ledger(self, run: str) -> str:
        words = self.program.headway("ledger", "verify", self._name(run), "--json")
        return require_whole_ledger(json.loads(words), self.nodes.num_steps)

    def _require_alone(self) -> list[Record]:
        if self._alone is None:
            raise ProofFailed("there is no run of one node to compare with")
        return self._alone

    def _require_as_alone(self, run: str) -> str:
        steps = self._directory(run).steps()
        return require_equal(steps, self._require_alone(), self.nodes.tolerance, "one node")
