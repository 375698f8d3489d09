"""What a script's worker writes into the run directory: rank 0 notes that the run has started and
ended, and that it is alive."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from headway.clock import Clock
from headway.errors import Exit
from headway.script.place import Place
from headway.state.generations import begin_generation, generations
from headway.state.rewinds import step_after
from headway.state.run_directory import Journal, RunDirectory, send_logs
from headway.state.status import newest_event
from headway.train.outages import outage_is_loss, outage_restarts
from headway.train.steps_file import StepsFile

ALIVE_SECONDS = 600.0
"""Between two events `alive`, by which a script that tells nothing shows that it makes progress."""


class RunRecord:
    def __init__(
        self, directory: RunDirectory, clock: Clock, generation: int, place: Place
    ) -> None:
        self._directory, self._clock = directory, clock
        self._generation, self._place = generation, place
        self._journal = Journal(directory.events, clock)
        self._is_leader = place.rank == 0
        self._step = 0
        self._began = self._alive_at = clock.monotonic()
        self._steps_file: StepsFile | None = None
        self.heartbeat_file = Path(os.environ["HEADWAY_STEPS"] + ".heartbeat")

    def begin(self) -> tuple[int, bool]:
        """Called by rank 0. The number of generations before, and whether nothing has been started
        since the run was launched."""
        with outage_restarts(self._directory, True), outage_is_loss():
            num_before = len(generations(self._directory))
            newest = newest_event(self._directory.history(), "launched", "started")
            self._step = step_after(self._directory.metrics.last() or {"rewind": 0})
            begin_generation(
                self._directory,
                self._generation,
                0,  # a script may begin anywhere
                self._place.num_workers,
                self._clock.now(),
            )
        return num_before, newest is None or newest["event"] == "launched"

    def started(self, device: str, reason: str) -> None:
        """The script runs."""
        self._steps_file = StepsFile(Path(os.environ["HEADWAY_STEPS"]))
        self._steps_file.begin(0)
        if not self._is_leader:
            return
        self._began = self._alive_at = self._clock.monotonic()
        self._journal.note(
            "started",
            generation=self._generation,
            resumed_from=None,
            step=self._step,
            total_steps=None,
            workers=self._place.num_workers,
            device=device,
            reason=reason,
            seconds={"import": 0.0, "build": 0.0, "load": 0.0},
        )

    def look(self, now: float) -> None:
        if self._is_leader and now - self._alive_at >= ALIVE_SECONDS:
            self._alive_at = now
            seconds = round(now - self._began)
            self._journal.note("alive", generation=self._generation, seconds=seconds)

    def end(self, code: int) -> None:
        if not self._is_leader:
            return
        if code in (Exit.DONE, Exit.STOPPED):
            self._journal.note("finished" if code == Exit.DONE else "stopped", step=self._step)
        with suppress(OSError):
            send_logs(self._directory)
