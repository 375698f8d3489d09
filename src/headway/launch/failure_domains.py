"""Failure domains: worker processes that are started and lost together, and counts of losses."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headway.launch.worker_exit import blame, is_failure, is_loss
from headway.spec.resolve import Resolved
from headway.state.checkpoints import saved_checkpoints
from headway.state.rewinds import step_after
from headway.state.run_directory import RunDirectory

MOST_LOSSES = 3
"""Losses of one domain without a new step of the run in between."""
MOST_ELSEWHERE = 10
"""Losses in a row that do not count, each at another step, where all go back to a checkpoint."""
MOST_FRUITLESS = 10
"""Starts in a row that end with their generation before they have taken a step."""
MOST_UNSAVED = 30
"""Starts in a row that end with their generation before they have saved."""
SEEN_SECONDS = 120.0
"""Time after which a new step is certainly visible from another machine: object stores receive the
metrics once a minute. Losses closer together than this are no reason to give up there."""
OUTAGE_SECONDS = 600.0
"""Time for which starts that fail while the store cannot be reached are not held against a run."""

Saved = tuple[int, int]
"""Generation and step of a checkpoint: that of the newest one is higher after each save, since a
generation saves beyond the step that it resumed from."""
NOTHING_SAVED: Saved = (0, 0)


@dataclass(frozen=True)
class StepsTaken:
    """By workers in their generation, as they have recorded them on this machine: logs in an object
    store are a minute old, and lack the last steps of a generation that was lost."""

    first: int
    """Step from which the generation resumed."""
    last: int

    @property
    def is_any(self) -> bool:
        return self.last > self.first


@dataclass
class WorkerProcess:
    name: str
    node: int
    local_rank: int
    log: Path
    log_start: int
    """Bytes of the log written by earlier starts of this run."""
    steps_file: Path
    """In which it records the steps it takes."""
    started_at: float
    ran_at: float | None = None
    """Time at which the command of a script was first seen to run."""
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

    @property
    def has_failed(self) -> bool:
        """By an error of its own."""
        return is_failure(self.exit_code)

    @property
    def steps_taken(self) -> StepsTaken | None:
        """None: its generation had not begun."""
        with suppress(OSError, ValueError):
            first, last = self.steps_file.read_text().split()
            return StepsTaken(int(first), int(last))
        return None

    @property
    def num_steps(self) -> int:
        """Taken since it was started."""
        taken = self.steps_taken
        return 0 if taken is None else taken.last - taken.first

    def signal(self, number: int) -> None:
        if self.pid is not None and self.exit_code is None:
            with suppress(ProcessLookupError):  # it has exited, and the report is on its way
                os.kill(self.pid, number)


@dataclass
class Losses:
    """Losses in a row, without progress of the run in between: a new step, or a new checkpoint
    where each loss goes back to one."""

    count: int = 0
    step: int = 0
    """Highest step of the run at the newest loss."""
    since: float = 0.0
    """Time of the first loss."""
    _last: int = 0
    """Step at the newest loss."""
    _saved: Saved = (0, 0)
    _num_elsewhere: int = 0
    """Losses in a row that did not count, since each was at another step."""

    def add(self, step: int, now: float) -> int:
        """The new count, where others keep the state: a new step is progress."""
        if step > self.step:
            self.count = 0
        return self._count(step, now)

    def add_rewound(self, taken: StepsTaken | None, saved: Saved, now: float) -> int:
        """The new count, where each loss goes back to a checkpoint: only a new one is progress, or
        a run that crashes a step later each time would do so for ever. But a run that has taken
        steps since, and was lost at a step where it was not lost before, has not failed in the same
        way again; yet it is to arrive one day."""
        step = self._last if taken is None else taken.last
        # The last step may not have been recorded.
        is_elsewhere = taken is not None and taken.is_any and abs(step - self._last) > 1
        if saved > self._saved:
            self.count = self._num_elsewhere = 0
        self._last, self._saved = step, max(saved, self._saved)
        if self.count and is_elsewhere and self._num_elsewhere < MOST_ELSEWHERE:
            self._num_elsewhere += 1
            return self.count
        return self._count(step, now)

    def _count(self, step: int, now: float) -> int:
        self.count += 1
        self.step = max(step, self.step)
        self.since = now if self.count == 1 else self.since
        return self.count

    def are_too_many(self, now: float) -> bool:
        """For a place where steps are seen late."""
        return self.count >= MOST_LOSSES and now - self.since > SEEN_SECONDS

    def __str__(self) -> str:
        if self._num_elsewhere:
            return f"{self.count + self._num_elsewhere} times in a row without a new checkpoint"
        return f"{self.count} times in a row without a new step"


@dataclass
class FruitlessStarts:
    """Starts in a row that ended with their generation before they took a step, or before they
    saved. Only the coordinator knows why: as when a worker always stalls while it builds its model,
    or some steps later. A planned change comes after a step, and saves."""

    count: int = 0
    """Those without a step."""
    since: float = 0.0
    """Time of the first of them."""
    num_unsaved: int = 0
    """Those without a new checkpoint."""
    unsaved_since: float = 0.0
    """Time of the first of them."""
    _saved: Saved = (0, 0)

    def add(self, has_advanced: bool, saved: Saved, now: float) -> None:
        """`has_advanced`: it has taken a step."""
        has_saved = saved > self._saved
        self._saved = max(saved, self._saved)
        self.count = 0 if has_advanced else self.count + 1
        self.since = now if self.count <= 1 else self.since
        self.num_unsaved = 0 if has_saved else self.num_unsaved + 1
        self.unsaved_since = now if self.num_unsaved <= 1 else self.unsaved_since

    def are_too_many(self, now: float) -> bool:
        recently = now - SEEN_SECONDS
        return (self.count >= MOST_FRUITLESS and self.since < recently) or (
            self.num_unsaved >= MOST_UNSAVED and self.unsaved_since < recently
        )

    def __str__(self) -> str:
        if self.count >= MOST_FRUITLESS:
            return f"{self.count} times in a row without a step"
        return f"{self.num_unsaved} times in a row without a new checkpoint"


@dataclass
class Outage:
    """Ends of workers in a row before they took a step, of which nobody knows whether the run has
    progressed: the store cannot be reached. They are no progress; and they are not held against the
    run, since no worker can start without the store, but not for ever."""

    count: int = 0
    since: float = 0.0
    """Time of the first."""
    _newest: float = 0.0

    def add(self, now: float) -> None:
        if now - self._newest > OUTAGE_SECONDS:
            self.count = 0  # another outage: workers have lived for long meanwhile
        self.count += 1
        self.since = now if self.count == 1 else self.since
        self._newest = now

    def is_too_long(self, now: float) -> bool:
        return self.count >= MOST_LOSSES and now - self.since > OUTAGE_SECONDS

    def __str__(self) -> str:
        return f"{self.count} times in a row while the run's storage could not be reached"


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
        """A worker that was lost. One whose device failed explains most, and one that was killed
        more than one that lost a peer."""
        lost = [worker for worker in self.workers if worker.is_lost]
        return min(lost, key=lambda one: (-blame(one.exit_code), one.exit_code or 0), default=None)

    @property
    def steps_taken(self) -> StepsTaken | None:
        """By the worker that came furthest."""
        found = [taken for worker in self.workers if (taken := worker.steps_taken) is not None]
        return max(found, key=lambda taken: taken.last, default=None)

    def lived_seconds(self, now: float) -> float:
        """Time for which the command of a script ran; 0 if it never did."""
        return max((now - one.ran_at for one in self.workers if one.ran_at is not None), default=0)

    def signal(self, number: int) -> None:
        for worker in self.workers:
            worker.signal(number)


def last_saved(directory: RunDirectory) -> Saved | None:
    """The last checkpoint visible from this machine; None: the store cannot be reached."""
    try:
        found = saved_checkpoints(directory)
    except OSError:
        return None
    return max(((one.generation, one.step) for one in found), default=NOTHING_SAVED)


def step_seen(directory: RunDirectory) -> int | None:
    """The newest step of the run visible from this machine; None: the store cannot be reached."""
    try:
        return step_after(directory.metrics.last() or {"rewind": 0})
    except OSError:
        return None


def failure_domains(resolved: Resolved, nodes: range) -> list[FailureDomain]:
    """The failure domains of these nodes."""
    ranks = range(resolved.ranks_per_node)
    if not resolved.has_coordinator:
        return [FailureDomain([(node, rank) for node in nodes for rank in ranks])]
    if resolved.domain_ranks > 1:
        return [FailureDomain([(node, rank) for rank in ranks]) for node in nodes]
    return [FailureDomain([(node, rank)]) for node in nodes for rank in ranks]
