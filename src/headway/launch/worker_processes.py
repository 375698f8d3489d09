"""The worker processes of a launcher: started through the fork server, polled, signalled. Which
are started, when, and what an exit means, is decided by the supervisor."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from headway.clock import Clock
from headway.errors import Exit
from headway.launch.failure_domains import FailureDomain, WorkerProcess
from headway.launch.fork_server import ForkServerLost, ForkServerProcess, WorkerExited
from headway.launch.worker_exit import blame
from headway.member.protocol.identity import WorkerIdentity
from headway.memory_limits import Memory
from headway.state.run_directory import RunDirectory

POLL_SECONDS = 0.1
BLAME_SECONDS = 1.0
"""Wait, after the first worker exited, for one that is more to blame."""
GRACE_SECONDS: dict[int, float] = {Exit.PEER_LOST: BLAME_SECONDS, Exit.GENERATION_OVER: 10.0}
"""Time for the other workers of a domain, by the exit code of the first: to report why they end, or
to end by themselves after a save. None after any other."""
SCRIPT_GRACE_SECONDS = {**GRACE_SECONDS, Exit.GENERATION_OVER: 120.0}
"""Of a script: rank 0 may save for as long as a pod has, after the others have ended. What has lost
a peer ends by itself within seconds."""
EXIT_SECONDS = 5.0
"""Grace between SIGINT and SIGKILL."""


class WorkerProcesses:
    """`environment` returns that of a worker; its second argument is the file at which workers of
    the domain meet. `node_name` is the first part of a worker's name."""

    def __init__(
        self,
        directory: RunDirectory,
        clock: Clock,
        environment: Callable[[WorkerProcess, Path], Mapping[str, str]],
        node_name: Callable[[int], str],
        memory: Memory,
        is_script: bool = False,
    ) -> None:
        self.domains: list[FailureDomain] = []
        self.fork_server: ForkServerProcess | None = None
        self.scratch = Path()
        self._directory = directory
        self._clock = clock
        self._environment = environment
        self._node_name = node_name
        self._memory = memory
        self._is_script = is_script
        self._grace = SCRIPT_GRACE_SECONDS if is_script else GRACE_SECONDS
        self._oom_kills = memory.oom_kills()
        """OOM kills accounted for: before the start, or of a worker that exited."""
        self._num_starts = 0
        self._starts_of: Counter[tuple[int, int]] = Counter()
        """Starts by (node, local rank): a worker that starts while its predecessor still leaves
        must not have the same name."""

    @property
    def exit_codes(self) -> list[int | None]:
        """Exit code of each worker; None for those that run."""
        return [worker.exit_code for domain in self.domains for worker in domain.workers]

    @property
    def have_failed(self) -> bool:
        """Whether any has, by an error of its own."""
        return any(worker.has_failed for domain in self.domains for worker in domain.workers)

    @property
    def have_exited(self) -> bool:
        return all(domain.has_exited for domain in self.domains)

    def start(self, domain: FailureDomain) -> None:
        assert self.fork_server is not None
        if domain not in self.domains:
            self.domains.append(domain)
        self._num_starts += 1
        self._starts_of[domain.ranks[0]] += 1
        domain.starts = self._starts_of[domain.ranks[0]]
        domain.workers, domain.lost_at, domain.left_at = [], None, None
        store = self.scratch / f"store-{self._num_starts}"
        for node, local_rank in domain.ranks:
            log = self._directory.log(node, local_rank)
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
            name = str(WorkerIdentity(self._node_name(node), domain.starts, local_rank))
            now, log_start = self._clock.monotonic(), log.stat().st_size
            steps_file = self.scratch / f"steps-{self._num_starts}-{node}-{local_rank}"
            worker = WorkerProcess(name, node, local_rank, log, log_start, steps_file, now)
            environment = self._environment(worker, store)  # may raise: then there is no worker
            domain.workers.append(worker)
            self.fork_server.start(name, [self._directory.location], environment, log)

    def poll(self, seconds: float = POLL_SECONDS) -> list[WorkerProcess]:
        """Waits up to `seconds` for reports of the fork server, and notes them. Returns the workers
        that have just been started."""
        assert self.fork_server is not None
        workers = {worker.name: worker for domain in self.domains for worker in domain.workers}
        started = []
        for report in self.fork_server.poll(seconds):
            worker = workers.get(report.name)
            if worker is None:
                continue
            if isinstance(report, WorkerExited):
                worker.exit_code, worker.last_words = report.exit_code, report.last_words
                if report.exit_code == -signal.SIGKILL:
                    worker.out_of_memory = self._was_out_of_memory()
            else:
                worker.pid = report.pid
                started.append(worker)
        self._note_running(workers.values())
        return started

    def _note_running(self, workers: Iterable[WorkerProcess]) -> None:
        """A script's worker waits for a place first, perhaps for hours."""
        for worker in workers:
            if self._is_script and worker.ran_at is None and worker.steps_file.exists():
                worker.ran_at = self._clock.monotonic()

    def _was_out_of_memory(self) -> bool | None:
        """Whether a SIGKILL just reported was the kernel's, for lack of memory."""
        if self._oom_kills is None:
            return None
        if (self._memory.oom_kills() or 0) <= self._oom_kills:
            return False
        self._oom_kills += 1
        return True

    def signal(self, number: int) -> None:
        for domain in self.domains:
            domain.signal(number)

    def kill_peers(self, domain: FailureDomain, lost: WorkerProcess) -> None:
        """The others of a domain cannot continue without it."""
        now = self._clock.monotonic()
        if domain.lost_at is None:
            domain.lost_at = now
        grace = self._grace.get(lost.exit_code or 0, 0.0)
        if now - domain.lost_at >= grace:
            for worker in domain.workers:
                worker.was_killed = worker.was_killed or worker.exit_code is None
            domain.signal(signal.SIGKILL)

    def to_blame(self) -> WorkerProcess:
        """Of the workers that failed or were lost, the one most to blame: waits for it if so far
        all have only lost a peer."""
        deadline = self._clock.monotonic() + BLAME_SECONDS
        while True:
            workers = [worker for domain in self.domains for worker in domain.workers]
            failed = [one for one in workers if one.has_failed or one.is_lost]
            worst = max(failed, key=lambda one: blame(one.exit_code))
            if blame(worst.exit_code) > 0 or self._clock.monotonic() > deadline:
                return worst
            self.poll()

    def end_all(self) -> None:
        self.signal(signal.SIGINT)
        deadline = self._clock.monotonic() + EXIT_SECONDS
        while not self.have_exited:
            if self._clock.monotonic() > deadline:
                self.signal(signal.SIGKILL)
            try:
                self.poll()
            except ForkServerLost:
                return  # nothing is left to report exits; workers have read the end of their stdin
