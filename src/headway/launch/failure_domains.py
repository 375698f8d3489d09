"""Failure domains: worker processes that are started and lost together, and counts of losses."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headway.launch.worker_exit import is_loss
from headway.spec.resolve import Resolved
from headway.state.rewinds import Record, step_after
from headway.state.run_directory import RunDirectory

MOST_LOSSES = 3
"""Losses of one domain without a new step of the run in between."""
MOST_ELSEWHERE = 10
"""Losses in a row on the way back to a step that was reached before, which do not count."""
MOST_FRUITLESS = 10
"""Starts in a row that end with their generation before they have taken a step."""
SEEN_SECONDS = 120.0
"""Time after which a new step is certainly visible from another machine: object stores receive the
metrics once a minute. Losses closer together than this are no reason to give up there."""


@dataclass
class WorkerProcess:
    name: str
    node: int
    local_rank: int
    log: Path
    log_start: int
    """Bytes of the log written by earlier starts of this run."""
    started_at: float
    pid: int | None = None
    exit_code: int | None = None
    """Exit code, negative for a signal; None while it runs."""
    last_words: str = ""
    """Cause of the exit, if the worker reported one."""
    out_of_memory: bool | None = None
    """Whether the kernel killed it for lack of memory; None if unknown."""

    was_killed: bool = False
    """Whether this launcher killed it, after the loss of a peer."""

    @property
    def is_lost(self) -> bool:
        """Not by this launcher's own doing."""
        return is_loss(self.exit_code) and not (
            self.was_killed and self.exit_code == -signal.SIGKILL
        )

    def signal(self, number: int) -> None:
        if self.pid is not None and self.exit_code is None:
            with suppress(ProcessLookupError):  # it has exited, and the report is on its way
                os.kill(self.pid, number)


@dataclass
class Losses:
    """Losses in a row, without a new step of the run in between."""

    count: int = 0
    step: int = 0
    """Highest step of the run at the newest loss."""
    since: float = 0.0
    """Time of the first loss."""
    _newest: Record | None = None
    _last: int = 0
    """Step at the newest loss."""
    _num_elsewhere: int = 0
    """Losses that did not count, since there was a new highest step."""

    def add(self, step: int, now: float, newest: Record | None = None) -> int:
        """The new count. `newest`: newest line of the metrics, where each loss goes back to a
        checkpoint. There a run that has taken steps since, and was lost at a step where it was not
        lost before, has not failed in the same way again; but it is to arrive one day."""
        has_advanced = newest is not None and "step" in newest and newest != self._newest
        # The last line may not have been written.
        is_elsewhere = has_advanced and step < self.step - 1 and abs(step - self._last) > 1
        self._newest, self._last = newest, step
        if is_elsewhere and self._num_elsewhere < MOST_ELSEWHERE:
            self._num_elsewhere += 1
            return self.count
        if step > self.step:
            self.count = self._num_elsewhere = 0
        self.count += 1
        self.step = max(step, self.step)
        self.since = now if self.count == 1 else self.since
        return self.count

    def are_too_many(self, now: float) -> bool:
        """For a place where steps are seen late."""
        return self.count >= MOST_LOSSES and now - self.since > SEEN_SECONDS


@dataclass
class FruitlessStarts:
    """Starts in a row that ended with their generation before they took a step. Only the
    coordinator knows why: as when a worker always stalls while it builds its model. A planned
    change comes after a step."""

    count: int = 0
    since: float = 0.0
    """Time of the first."""
    _newest: Record | None = None

    def add(self, newest: Record, now: float) -> None:
        has_advanced = "step" in newest and newest != self._newest
        self._newest = newest
        self.count = 0 if has_advanced else self.count + 1
        self.since = now if self.count <= 1 else self.since

    def are_too_many(self, now: float) -> bool:
        return self.count >= MOST_FRUITLESS and now - self.since > SEEN_SECONDS


@dataclass(eq=False)
class FailureDomain:
    """Workers that are started and lost together."""

    ranks: list[tuple[int, int]]
    """(node, local rank) of each worker."""
    workers: list[WorkerProcess] = field(default_factory=list)
    starts: int = 0
    losses: Losses = field(default_factory=Losses)
    lost_at: float | None = None
    left_at: float | None = None
    """Time at which all workers had left without a request from this launcher."""
    is_leaving: bool = False
    """Whether this launcher has asked it to leave."""

    @property
    def has_exited(self) -> bool:
        return all(worker.exit_code is not None for worker in self.workers)

    @property
    def lost(self) -> WorkerProcess | None:
        """A worker that was lost. One that was killed explains more than one that lost a peer."""
        lost = [worker for worker in self.workers if worker.is_lost]
        return min(lost, key=lambda worker: worker.exit_code or 0, default=None)

    def signal(self, number: int) -> None:
        for worker in self.workers:
            worker.signal(number)


def newest_seen(directory: RunDirectory) -> Record:
    """The newest line of the run's metrics visible from this machine."""
    try:
        return directory.metrics.last() or {"rewind": 0}
    except OSError:
        return {"rewind": 0}  # the store cannot be reached


def step_seen(directory: RunDirectory) -> int:
    """The newest step of the run visible from this machine."""
    return step_after(newest_seen(directory))


def failure_domains(resolved: Resolved, nodes: range) -> list[FailureDomain]:
    """The failure domains of these nodes."""
    ranks = range(resolved.ranks_per_node)
    if not resolved.has_coordinator:
        return [FailureDomain([(node, rank) for node in nodes for rank in ranks])]
    if resolved.domain_ranks > 1:
        return [FailureDomain([(node, rank) for rank in ranks]) for node in nodes]
    return [FailureDomain([(node, rank)]) for node in nodes for rank in ranks]
