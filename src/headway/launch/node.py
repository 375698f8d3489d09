"""One node of a run, in a pod: its workers, forked from a warm parent. Who is in the run is decided
by a coordinator elsewhere; what they print is this process's output.

A worker that is lost is started again, the pod stays. When the node is asked to leave, all its
workers leave as planned. How it ends tells Kubernetes what to do: DONE ends the run, STOPPED and
death by a signal have the pod replaced, an error of the run's own ends the run as failed.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from headway.clock import Clock
from headway.errors import Exit, RunFailed
from headway.launch.parent import COMMAND, ParentLost, WarmParent
from headway.launch.units import (
    Unit,
    Worker,
    describe_end,
    is_failure,
    step_seen,
    told_end,
    units_of,
    words_of,
)
from headway.launch.workers import DEFAULTS, Workers
from headway.memory import Memory
from headway.spec.resolve import Resolved
from headway.state.generations import next_generation
from headway.state.rundir import RunDirectory

STRAGGLER_SECONDS = 10.0
"""Between the first worker that ends well and the last."""


@dataclass(frozen=True)
class Place:
    """Where a node is in its run."""

    pod: str
    """Its name, which no other pod of the run has ever had."""
    index: int
    coordinator: str
    key: Path


class NodeRun:
    """`say` takes a line for the pod's log. `parent` is the command of what forks workers."""

    def __init__(
        self,
        resolved: Resolved,
        directory: RunDirectory,
        place: Place,
        clock: Clock,
        say: Callable[[str], None],
        parent: Sequence[str] = COMMAND,
        memory: Memory | None = None,
    ) -> None:
        self.resolved = resolved
        self.directory = directory
        self.place = place
        self.clock = clock
        self.is_leaving = False
        self.workers = Workers(
            directory, clock, self._worker_environment, lambda _: place.pod, memory or Memory()
        )
        self._say = say
        self._command = parent
        self._generation = 0
        self._printed: dict[Path, int] = {}
        """Bytes of each log."""
        self._over_at: float | None = None

    def run(self) -> Exit:
        """Until its part is over: DONE, STOPPED when it has left, PEER_LOST when it cannot go on
        here."""
        with ExitStack() as stack:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-"))
            self.workers.scratch = Path(scratch)
            # What it prints is about this pod only, and the folder is shared by all of them.
            parent_log = Path(scratch, "parent.log")
            self._printed[parent_log] = 0
            self.workers.parent = stack.enter_context(
                WarmParent(
                    self.directory.location, self._environment(), parent_log, None, self._command
                )
            )
            stack.callback(self._send_logs)
            stack.callback(self._print)
            stack.callback(self.workers.end_all)
            self._next_generation()
            for unit in units_of(self.resolved, range(self.place.index, self.place.index + 1)):
                self._start(unit)
            try:
                return self._supervise()
            except ParentLost as lost:
                # Short of memory, most likely: nothing that another pod could not do better.
                self._say(lost.message)
                return Exit.PEER_LOST

    def leave(self) -> None:
        """From a signal handler."""
        self.is_leaving = True
        self.workers.signal(signal.SIGTERM)

    def _start(self, unit: Unit) -> None:
        self.workers.start(unit)
        for worker in unit.workers:
            self._printed.setdefault(worker.log, worker.log_start)

    def _next_generation(self) -> None:
        if not self.resolved.is_live:
            self._generation = next_generation(self.directory)

    def _worker_environment(self, worker: Worker, store: Path) -> dict[str, str]:
        rank = worker.node * self.resolved.ranks_per_node + worker.local_rank
        environment = {**self._environment(), "HEADWAY_RANK": str(rank)}
        environment["HEADWAY_DEVICE"] = str(worker.local_rank)
        if self.resolved.is_live:
            environment["HEADWAY_COORDINATOR"] = self.place.coordinator
            environment["HEADWAY_KEY"] = str(self.place.key)
            environment["HEADWAY_RUN"] = self.directory.name
            environment["HEADWAY_POD"] = worker.name
        else:
            environment["HEADWAY_GENERATION"] = str(self._generation)
        if not self.resolved.is_live or self.resolved.sharded:
            environment["HEADWAY_STORE"] = str(store)
        return environment

    def _environment(self) -> dict[str, str]:
        return {**DEFAULTS, **os.environ, "OMP_NUM_THREADS": str(self.resolved.threads)}

    def _supervise(self) -> Exit:
        while True:
            for worker in self.workers.hear():
                if self.is_leaving:  # it was not there yet when all were asked to
                    worker.signal(signal.SIGTERM)
            self._print()
            codes = self.workers.codes
            if any(is_failure(code) for code in codes):
                self._fail(self.workers.to_blame(), "")
            is_ending = self.is_leaving or Exit.DONE in codes
            for unit in self.workers.units:
                self._look_after(unit, is_ending)
            if self.workers.have_ended:
                return Exit.DONE if Exit.DONE in codes else Exit.STOPPED
            if Exit.DONE in codes:
                self._end_stragglers()

    def _look_after(self, unit: Unit, is_ending: bool) -> None:
        lost = unit.lost
        if lost is None:
            if not unit.has_ended and Exit.STOPPED in [worker.code for worker in unit.workers]:
                unit.signal(signal.SIGTERM)  # one has left, the others are of no use alone
            return
        if not unit.has_ended:
            self.workers.end_others(unit, lost)
            return
        if is_ending:
            return
        assert lost.code is not None
        how = describe_end(lost.code, lost.out_of_memory)
        self._say(f"worker {lost.name} {how}, and is started again")
        now = self.clock.monotonic()
        losses = unit.losses.add(step_seen(self.directory), now)
        if unit.losses.are_too_many(now):
            self._fail(lost, f", {losses} times without a new step in between")
        self._next_generation()
        self._start(unit)

    def _end_stragglers(self) -> None:
        """Nobody ends well before all is saved; who is there long after that stands still."""
        now = self.clock.monotonic()
        if self._over_at is None:
            self._over_at = now
        if now - self._over_at > STRAGGLER_SECONDS:
            self.workers.signal(signal.SIGKILL)

    def _fail(self, worker: Worker, times: str) -> None:
        assert worker.code is not None
        words, hint = words_of(worker)
        how = describe_end(worker.code, worker.out_of_memory)
        raise RunFailed(told_end(worker, f"{how}{times}", words), hint)

    def _send_logs(self) -> None:
        """To a store far away, behind what pods before this one have sent."""
        store = self.directory.store
        if store.is_local:
            return
        for log in (worker.log for unit in self.workers.units for worker in unit.workers):
            name = f"logs/{log.name}"
            with suppress(OSError):
                before = b"" if store.size(name) is None else store.read(name)
                store.write(name, before + log.read_bytes())

    def _print(self) -> None:
        """What workers have printed since the last time, by whole lines."""
        several = self.resolved.ranks_per_node > 1
        for log, offset in self._printed.items():
            try:
                with log.open("rb") as file:
                    file.seek(offset)
                    data = file.read()
            except FileNotFoundError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._printed[log] = offset + len(whole)
            prefix = f"{log.stem}: " if several else ""
            for line in whole.decode("utf-8", errors="replace").splitlines():
                self._say(f"{prefix}{line}")
