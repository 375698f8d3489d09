"""The workers of a launcher: started through a warm parent, heard of, ended. Who is started, when,
and what an end means, is for the launcher to say."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from headway.clock import Clock
from headway.errors import Exit
from headway.launch.parent import Ended, ParentLost, WarmParent
from headway.launch.units import Unit, Worker, blame, is_failure, is_loss
from headway.memory import Memory
from headway.state.rundir import RunDirectory

POLL_SECONDS = 0.1
BLAME_SECONDS = 1.0
"""After the first worker has ended, how long to wait for one that is more to blame than it."""
END_SECONDS = 5.0
"""Between asking the others to end and ending them."""

DEFAULTS: Mapping[str, str] = {
    "PYTHONUNBUFFERED": "1",
    # OpenMP threads that spin while they wait make a step ten times slower when anything else wants
    # the cores, and a fifth faster when nothing does. A laptop has a browser open.
    "GOMP_SPINCOUNT": "1000",
}


class Workers:
    """`environment` gives a worker's, and is told of the file at which those of its unit meet;
    `node_name` what the name of a worker begins with."""

    def __init__(
        self,
        directory: RunDirectory,
        clock: Clock,
        environment: Callable[[Worker, Path], Mapping[str, str]],
        node_name: Callable[[int], str],
        memory: Memory,
    ) -> None:
        self.units: list[Unit] = []
        self.parent: WarmParent | None = None
        self.scratch = Path()
        self._directory = directory
        self._clock = clock
        self._environment = environment
        self._node_name = node_name
        self._memory = memory
        self._oom_kills = memory.oom_kills()
        """Those that explain the end of no worker of ours, or of one that has ended."""
        self._num_starts = 0
        self._starts_at: Counter[tuple[int, int]] = Counter()
        """By place: one that comes while another still leaves must not have its name."""

    @property
    def codes(self) -> list[int | None]:
        """How each worker ended; None of those that have not."""
        return [worker.code for unit in self.units for worker in unit.workers]

    @property
    def have_ended(self) -> bool:
        return all(unit.has_ended for unit in self.units)

    def start(self, unit: Unit) -> None:
        assert self.parent is not None
        if unit not in self.units:
            self.units.append(unit)
        self._num_starts += 1
        self._starts_at[unit.places[0]] += 1
        unit.starts = self._starts_at[unit.places[0]]
        unit.workers, unit.lost_at, unit.left_at = [], None, None
        store = self.scratch / f"store-{self._num_starts}"
        for node, local_rank in unit.places:
            log = self._directory.log(node, local_rank)
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
            name = f"{self._node_name(node)}.{unit.starts}/{local_rank}"
            now, log_start = self._clock.monotonic(), log.stat().st_size
            worker = Worker(name, node, local_rank, log, log_start, now)
            unit.workers.append(worker)
            arguments = [self._directory.location]
            self.parent.start(name, arguments, self._environment(worker, store), log)

    def hear(self, seconds: float = POLL_SECONDS) -> list[Worker]:
        """What became of them; waits so long for news. Those that have just been started."""
        assert self.parent is not None
        workers = {worker.name: worker for unit in self.units for worker in unit.workers}
        started = []
        for news in self.parent.news(seconds):
            worker = workers.get(news.name)
            if worker is None:
                continue
            if isinstance(news, Ended):
                worker.code, worker.words = news.code, news.words
                if news.code == -signal.SIGKILL:
                    worker.out_of_memory = self._was_out_of_memory()
            else:
                worker.pid = news.pid
                started.append(worker)
        return started

    def _was_out_of_memory(self) -> bool | None:
        """Whether that is why the kernel has just killed one."""
        if self._oom_kills is None:
            return None
        if (self._memory.oom_kills() or 0) <= self._oom_kills:
            return False
        self._oom_kills += 1
        return True

    def signal(self, number: int) -> None:
        for unit in self.units:
            unit.signal(number)

    def end_others(self, unit: Unit, lost: Worker) -> None:
        """They cannot go on without it. But who has only lost a peer is not to blame: one that is
        may be about to say why."""
        now = self._clock.monotonic()
        if unit.lost_at is None:
            unit.lost_at = now
        if lost.code != Exit.PEER_LOST or now - unit.lost_at > BLAME_SECONDS:
            unit.signal(signal.SIGKILL)

    def to_blame(self) -> Worker:
        """When some have ended as they should not: the one that did so by itself, if one did."""
        deadline = self._clock.monotonic() + BLAME_SECONDS
        while True:
            workers = [worker for unit in self.units for worker in unit.workers]
            failed = [one for one in workers if is_failure(one.code) or is_loss(one.code)]
            worst = max(failed, key=lambda one: blame(one.code))
            if blame(worst.code) > 0 or self._clock.monotonic() > deadline:
                return worst
            self.hear()

    def end_all(self) -> None:
        self.signal(signal.SIGINT)
        deadline = self._clock.monotonic() + END_SECONDS
        while not self.have_ended:
            if self._clock.monotonic() > deadline:
                self.signal(signal.SIGKILL)
            try:
                self.hear()
            except ParentLost:
                return  # nobody is left who could say it; they have read the end of their stdin
