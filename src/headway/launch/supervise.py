"""What every launcher of worker processes does until they have exited: restart a failure domain
that was lost, kill the rest of one that lost a worker, end stragglers, find the one to blame.

A worker that ends with an error of its own would do so again: it ends the run within seconds, and
its last words are what the user sees first.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from headway.clock import Clock
from headway.errors import Exit, RunFailed
from headway.launch.failure_domains import (
    FailureDomain,
    FruitlessStarts,
    Losses,
    Outage,
    WorkerProcess,
    last_saved,
)
from headway.launch.fork_server import ForkServerProcess, fork_server_command
from headway.launch.script_progress import (
    ScriptEnd,
    ScriptEnds,
    describe_script_exit,
    was_killed,
)
from headway.launch.uncounted_ends import SeenProgress, UncountedEnd, UncountedEnds
from headway.launch.work_folder import WorkFolder, files_to_copy, make_work_folder
from headway.launch.worker_exit import describe_exit, exit_cause
from headway.launch.worker_processes import WorkerProcesses
from headway.memory_limits import Memory
from headway.spec.resolve import Resolved
from headway.state.run_directory import OUTPUT, Journal, RunDirectory
from headway.worker_environment import (
    DEFAULTS,
    NCCL_DEFAULTS,
    allocator_defaults,
    with_packages,
)

STRAGGLER_SECONDS = 10.0
"""Grace between the first worker that finishes and the last."""


@dataclass(frozen=True)
class ScriptPlace:
    """Where a node of a script runs."""

    work: Path
    """Working folder of its processes."""
    scratch: Path
    """Folder that they find again after a restart."""


class Supervisor(ABC):
    """`fork_server` is the command of the process that forks workers, if it is another one."""

    environment_defaults = DEFAULTS
    seen_seconds = 0.0
    """Time after which a step of the run is certainly visible here."""

    def __init__(
        self,
        resolved: Resolved,
        directory: RunDirectory,
        clock: Clock,
        node_name: Callable[[int], str],
        fork_server: Sequence[str] | None,
        memory: Memory,
    ) -> None:
        self.resolved = resolved
        self.directory = directory
        self.clock = clock
        self.memory = memory
        self.launch = ""
        """Token of this start, by which its workers write to the run's chain."""
        self.generation = 0
        self.workers = WorkerProcesses(
            directory, clock, self._worker_environment, node_name, memory, resolved.is_script
        )
        self._fork_server = fork_server or fork_server_command(resolved)
        self._over_at: float | None = None
        self._lost_at = -math.inf
        """Time of the newest loss that counts."""
        self._losses_of_all = Losses()
        self._ended_at = -math.inf
        """Time at which the newest generation ended, as seen by the first worker that ended with
        it."""
        self._fruitless_starts = FruitlessStarts()
        self._outage = Outage()
        self._script_ends = ScriptEnds()
        self._work_folders: dict[int, WorkFolder] = {}
        """By node, of a script."""
        self._uncounted = UncountedEnds(self._progress, waits=not directory.store.is_local)

    # What a launcher decides for itself

    @property
    @abstractmethod
    def _is_asked_to_end(self) -> bool:
        """Whether workers were asked to exit: none is restarted."""

    @abstractmethod
    def _coordinator_address(self) -> tuple[str, Path] | None:
        """Address and key file; None if the run has no coordinator."""

    @abstractmethod
    def _device(self, worker: WorkerProcess) -> int: ...

    @abstractmethod
    def _script_place(self, node: int) -> ScriptPlace: ...

    @abstractmethod
    def _on_large_files(self, node: int, names: Sequence[str]) -> None:
        """A script has written them to its working folder."""

    @abstractmethod
    def _on_left_files(self, node: int, names: Sequence[str]) -> None:
        """They are as the script has left them in its working folder, not as in the code."""

    @abstractmethod
    def _on_started(self, worker: WorkerProcess) -> None: ...

    @abstractmethod
    def _on_poll(self) -> None:
        """Several times a second."""

    @abstractmethod
    def _on_left(self, domain: FailureDomain) -> None:
        """All of it stopped without a request from this launcher."""

    @abstractmethod
    def _newest_step(self) -> int | None:
        """Of the run, as far as it is visible here; None: its store cannot be reached."""

    @abstractmethod
    def _are_too_many(self, losses: Losses) -> bool:
        """Whether the run ends."""

    @abstractmethod
    def _on_lost(self, domain: FailureDomain, lost: WorkerProcess, how: str) -> None:
        """Before it is restarted and counted. Raises, if it is not to be."""

    @abstractmethod
    def _is_over(self, exit_codes: Sequence[int | None]) -> bool:
        """Whether all is saved: a worker that still runs some time after that hangs."""

    @abstractmethod
    def _outcome(self, exit_codes: Sequence[int | None]) -> Exit:
        """DONE or STOPPED, when all workers have exited."""

    @abstractmethod
    def _failure(
        self, worker: WorkerProcess, how: str, cause: str, hint: str | None
    ) -> RunFailed: ...

    def _early_outcome(self, exit_codes: Sequence[int | None]) -> Exit | None:
        """The outcome, if the workers that still run cannot change it."""
        return None

    # What is the same for all

    def _enter_fork_server(self, stack: ExitStack, log: Path, lock: int | None) -> None:
        # What a script requires is for its command only: our own process has other versions.
        packages = None if self.resolved.is_script else self.resolved.packages
        environment = self._environment(packages)
        self.workers.fork_server = stack.enter_context(
            ForkServerProcess(self.directory.location, environment, log, lock, self._fork_server)
        )

    def _worker_environment(self, worker: WorkerProcess, store: Path) -> dict[str, str]:
        environment = {
            **self._environment(self.resolved.packages),
            "HEADWAY_LAUNCH": self.launch,
            "HEADWAY_RANK": str(self._rank(worker)),
            "HEADWAY_DEVICE": str(self._device(worker)),
            "HEADWAY_STEPS": str(worker.steps_file),
        }
        if (coordinator := self._coordinator_address()) is None:
            environment["HEADWAY_GENERATION"] = str(self.generation)
        else:
            address, key = coordinator
            environment["HEADWAY_COORDINATOR"] = address
            environment["HEADWAY_KEY"] = str(key)
            environment["HEADWAY_RUN"] = self.directory.name
            environment["HEADWAY_POD"] = worker.name
        if coordinator is None or (self.resolved.is_live and self.resolved.sharded):
            environment["HEADWAY_STORE"] = str(store)
        if self.resolved.is_script:
            environment |= self._script_environment(worker.node)
        return environment

    def _script_environment(self, node: int) -> dict[str, str]:
        """See `headway.script`."""
        place, store = self._script_place(node), self.directory.store
        if node not in self._work_folders:
            folder = make_work_folder(place.work, self._code_files())
            self._work_folders[node] = folder
            if folder.left:
                self._on_left_files(node, folder.left)
            place.scratch.mkdir(parents=True, exist_ok=True)
        if store.is_local:
            store.path(OUTPUT).mkdir(parents=True, exist_ok=True)
        return {
            "HEADWAY_WORKDIR": str(place.work),
            "HEADWAY_OUTPUT": store.location(OUTPUT),
            "HEADWAY_SCRATCH": str(place.scratch),
        }

    def _code_files(self) -> Mapping[str, Path]:
        """Of a script, by their names in the code folder."""
        return files_to_copy(self.resolved)

    def _name_large_files(self) -> None:
        for node, folder in self._work_folders.items():
            if names := folder.new_large_files():
                self._on_large_files(node, names)

    def _environment(self, packages: str | None) -> dict[str, str]:
        """Environment of the fork server, and of workers before their own variables."""
        threads = str(self.resolved.threads)
        defaults = {**self.environment_defaults, **allocator_defaults(self.resolved.device)}
        if not self.resolved.is_script:
            defaults |= NCCL_DEFAULTS
        given = {**defaults, **os.environ}
        if self.resolved.is_script:  # what it starts by a shell has the same Python as itself
            beside = os.path.dirname(sys.executable)
            given["PATH"] = f"{beside}{os.pathsep}{given.get('PATH', os.defpath)}"
        environment = with_packages(packages, given)
        return {**environment, "OMP_NUM_THREADS": threads}

    def _supervise(self) -> Exit:
        """Until the workers have exited. Raises RunFailed with the first cause."""
        while True:
            for worker in self.workers.poll():
                self._on_started(worker)
            self._on_poll()
            exit_codes = self.workers.exit_codes
            if (outcome := self._early_outcome(exit_codes)) is not None:
                return outcome
            if self.workers.have_failed:
                raise self._run_failed(self.workers.to_blame())
            is_ending = self._is_asked_to_end or Exit.DONE in exit_codes
            if not is_ending:
                self._count_ends()
            for domain in list(self.workers.domains):
                self._look_after(domain, is_ending)
            if self.workers.have_exited:
                return self._outcome(exit_codes)
            if self._is_over(exit_codes):
                self._end_stragglers()

    def _look_after(self, domain: FailureDomain, is_ending: bool) -> None:
        lost = domain.lost
        if not domain.has_exited:
            if lost is not None:
                self.workers.kill_peers(domain, lost)
            elif not is_ending and any(one.exit_code is not None for one in domain.workers):
                domain.signal(signal.SIGTERM)  # one has left, the others cannot work without it
        elif domain.is_leaving and not (lost is not None and is_ending):
            self.workers.domains.remove(domain)
        elif is_ending:
            return
        elif lost is None:
            self._on_left(domain)
        else:
            self._restart(domain, lost)

    def _restart(self, domain: FailureDomain, lost: WorkerProcess) -> None:
        assert lost.exit_code is not None
        self._note_end(domain, lost)
        if self._coordinator_address() is None:
            self.generation += 1  # only this launcher starts any
        self.workers.start(domain)
        self._name_large_files()  # may take a moment

    def _note_end(self, domain: FailureDomain, lost: WorkerProcess) -> None:
        now, is_cause = self.clock.monotonic(), self._is_cause(lost)
        if is_cause:
            self._lost_at = now
            self._on_lost(domain, lost, self._how(lost))
        if is_cause or lost.started_at > max(self._lost_at, self._ended_at):
            self._ended_at = self._ended_at if is_cause else now
            self._uncounted.add(domain, lost, is_cause, now)
            self._count_ends()  # at once, where the store is a folder

    def _note_device(self, journal: Journal, lost: WorkerProcess) -> str | None:
        """Records that the worker was lost with its device, if it was. Returns the reason."""
        if lost.exit_code != Exit.DEVICE_LOST:
            return None
        reason, _ = exit_cause(lost.last_words, lost.log, lost.log_start)
        place = {
            "node": lost.node,
            "local_rank": lost.local_rank,
            "device_number": self._device(lost),
        }
        journal.note("device_failed", **place, reason=reason)
        return reason

    def _is_cause(self, lost: WorkerProcess) -> bool:
        """Whether this loss counts. Workers that end with their generation follow the first that
        was lost, if only by torch's watchdog: all that were started before it was."""
        is_follower = not self.resolved.is_live and lost.started_at <= self._lost_at
        return lost.exit_code != Exit.GENERATION_OVER and not is_follower

    def _progress(self) -> SeenProgress | None:
        if self.resolved.is_live or self.resolved.is_script:
            step = self._newest_step()
            return None if step is None else SeenProgress(step=step)
        saved = last_saved(self.directory)
        return None if saved is None else SeenProgress(saved=saved)

    def _count_ends(self) -> None:
        """Raises if workers keep ending, and that is all that happens."""
        for end, progress in self._uncounted.known(self.clock.monotonic()):
            if progress is None and not end.has_advanced:
                self._count_outage(end)
                continue
            self._outage = Outage()
            if self.resolved.is_script:
                self._count_script_end(end, progress or SeenProgress())
                continue
            if progress is None and self.resolved.is_live:
                continue  # it took steps, though nobody knows how far the run is
            if end.is_loss:
                self._count_loss(end, progress or SeenProgress())
            else:
                self._require_steps(end, progress or SeenProgress())

    def _count_script_end(self, end: UncountedEnd, progress: SeenProgress) -> None:
        taken, lost = end.steps_taken, end.worker
        step = progress.step if taken is None else max(progress.step, taken.last)
        killed = was_killed(lost.exit_code, lost.out_of_memory)
        ended = ScriptEnd(end.lived_seconds, end.is_loss, killed, end.cause)
        self._script_ends.add(ended, step, end.at)
        if self._script_ends.are_too_many(end.at, self.seen_seconds):
            raise self._end_failed(end, self._script_ends)

    def _require_steps(self, end: UncountedEnd, progress: SeenProgress) -> None:
        """A generation has ended, and nobody was lost here."""
        starts = self._fruitless_starts
        starts.add(end.has_advanced, progress.saved, end.at)
        if starts.are_too_many(end.at):
            raise self._end_failed(end, starts)

    def _count_loss(self, end: UncountedEnd, progress: SeenProgress) -> None:
        """Of the domain, or of all where all restart together."""
        if self.resolved.is_live:
            losses = end.domain.losses
            losses.add(progress.step, end.at)
        else:
            losses = self._losses_of_all
            losses.add_rewound(end.steps_taken, progress.saved, end.at)
        if self._are_too_many(losses):
            raise self._end_failed(end, losses)

    def _count_outage(self, end: UncountedEnd) -> None:
        self._outage.add(end.at)
        if self._outage.is_too_long(end.at):
            raise self._end_failed(end, self._outage)

    def _end_failed(self, end: UncountedEnd, times: object) -> RunFailed:
        return self._failure(end.worker, f"{self._how(end.worker)}, {times}", end.cause, end.hint)

    def _how(self, worker: WorkerProcess) -> str:
        assert worker.exit_code is not None
        how = describe_exit(worker.exit_code, worker.out_of_memory)
        return describe_script_exit(worker.exit_code, how) if self.resolved.is_script else how

    def _end_stragglers(self) -> None:
        """Workers exit well only when all is saved. One that still runs long after that hangs: the
        others have continued without it, and it must not continue by itself one day."""
        now = self.clock.monotonic()
        if self._over_at is None:
            self._over_at = now
        if now - self._over_at > STRAGGLER_SECONDS:
            self.workers.signal(signal.SIGKILL)

    def _run_failed(self, worker: WorkerProcess) -> RunFailed:
        """The error that ends the run, with the last words of this worker."""
        cause, hint = exit_cause(worker.last_words, worker.log, worker.log_start)
        return self._failure(worker, self._how(worker), cause, hint)

    def _rank(self, worker: WorkerProcess) -> int:
        return worker.node * self.resolved.ranks_per_node + worker.local_rank
