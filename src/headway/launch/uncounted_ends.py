"""Ends of workers that are to be counted, once it is known whether the run has progressed. Only its
store knows, and it may not answer for a minute: meanwhile the successors are started."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Thread

from headway.launch.failure_domains import (
    NOTHING_SAVED,
    FailureDomain,
    Saved,
    StepsTaken,
    WorkerProcess,
)
from headway.launch.script_progress import ALIVE_SECONDS
from headway.launch.worker_exit import exit_cause

ANSWER_SECONDS = 15.0
"""Deadline for the store; then it counts as one that cannot be reached."""


@dataclass(frozen=True)
class SeenProgress:
    """Of the run, as far as it matters to the mode that it is in."""

    step: int = 0
    """Newest step, where others keep the state."""
    saved: Saved = NOTHING_SAVED
    """Newest checkpoint, where each loss goes back to one."""


@dataclass(frozen=True)
class UncountedEnd:
    """Of a domain's workers. What they have left behind is looked at before their successors
    start."""

    domain: FailureDomain
    worker: WorkerProcess
    """The one that was lost first."""
    is_loss: bool
    """Else its generation was over."""
    steps_taken: StepsTaken | None
    cause: str
    hint: str | None
    at: float
    lived_seconds: float
    """From when its command ran, of a script."""
    progress: Future[SeenProgress | None]

    @property
    def has_advanced(self) -> bool:
        has_steps = self.steps_taken is not None and self.steps_taken.is_any
        return has_steps or self.lived_seconds >= ALIVE_SECONDS


@dataclass
class UncountedEnds:
    """`look` asks the store; None: it cannot be reached. `waits`: whether that may take long."""

    look: Callable[[], SeenProgress | None]
    waits: bool
    _ends: deque[UncountedEnd] = field(default_factory=deque)

    def add(self, domain: FailureDomain, worker: WorkerProcess, is_loss: bool, now: float) -> None:
        cause, hint = exit_cause(worker.last_words, worker.log, worker.log_start)
        taken, progress = domain.steps_taken, self._asked()
        lived = domain.lived_seconds(now)
        self._ends.append(
            UncountedEnd(domain, worker, is_loss, taken, cause, hint, now, lived, progress)
        )

    def known(self, now: float) -> Iterator[tuple[UncountedEnd, SeenProgress | None]]:
        """Those whose answer has come, or is late, in order."""
        while self._ends:
            end = self._ends[0]
            is_late = now - end.at > ANSWER_SECONDS
            if not end.progress.done() and not is_late:
                return
            self._ends.popleft()
            yield end, end.progress.result() if end.progress.done() else None

    def _asked(self) -> Future[SeenProgress | None]:
        answer: Future[SeenProgress | None] = Future()

        def ask() -> None:
            try:
                answer.set_result(self.look())
            except Exception as error:  # noqa: BLE001 - raised where the answer is read
                answer.set_exception(error)

        if self.waits:
            # A daemon: nothing is left to count when the launcher exits.
            Thread(target=ask, name="progress", daemon=True).start()
        else:
            ask()
        return answer
