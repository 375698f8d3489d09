"""What a script's worker writes down: for its launcher the steps of the heartbeat, and as rank 0,
in the run directory, that the run has started and ended, its steps, and that it is alive."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread

import msgspec

from headway.clock import Clock, stamp
from headway.errors import Exit, HeadwayError
from headway.script.ending import has_finished, is_untried
from headway.script.heartbeat import READ_SECONDS, HeartbeatFile, ScriptHeartbeat, StepRecords
from headway.script.place import Place
from headway.state.chain import Chain
from headway.state.run_directory import Journal, RunDirectory, send_logs
from headway.train.outages import outage_is_loss, outage_restarts
from headway.train.steps_file import StepsFile

ALIVE_SECONDS = 600.0
"""Between two events `alive`, by which a script that tells nothing shows that it makes progress."""
SEND_SECONDS = 60.0
"""Between two uploads of the steps to an object store."""
FINISHED_SEND_SECONDS = 60.0
"""For the last one of a run that has finished: one that nobody knows to be would begin again."""
FINISHED_PAUSE_SECONDS = 1.0
"""Between two attempts of it."""
LAST_SEND_SECONDS = 10.0
"""For that of a run that was stopped, or whose members change as planned."""
LOST_SEND_SECONDS = 1.0
"""The same where the next generation waits for this worker's successor."""


class ScriptHistory(msgspec.Struct, frozen=True):
    """What the run directory tells of the script before a generation."""

    num_generations: int
    is_untried: bool
    """Since the launch, as in `ending`."""
    has_finished: bool
    """Since the launch, as in `ending`."""


class RunRecord:
    def __init__(
        self,
        directory: RunDirectory,
        clock: Clock,
        generation: int,
        place: Place,
        environment: Mapping[str, str],
    ) -> None:
        """`environment`: that of this worker."""
        self._directory, self._clock = directory, clock
        self._chain = Chain(directory, environment["HEADWAY_LAUNCH"])
        self._generation, self._place = generation, place
        self._journal = Journal(directory.events, clock)
        self._is_leader = place.rank == 0
        node, self._local_rank = divmod(int(environment["HEADWAY_RANK"]), place.ranks_per_node)
        self._node = node
        """As its launcher counts nodes, whoever is in the generation."""
        steps = Path(environment["HEADWAY_STEPS"])
        self._steps_path, self._steps_file = steps, StepsFile(None)
        self._records = StepRecords(directory.metrics, generation, clock)
        self.heartbeat_file = steps.with_name(f"{steps.name}.heartbeat")
        self._heartbeats = HeartbeatFile(self.heartbeat_file)
        self._first_step: int | None = None
        self._began = self._alive_at = self._read_at = self._sent_at = clock.monotonic()
        self._sending: Thread | None = None
        self._is_sent = False
        """Whether the last upload had all events."""

    def begin(self) -> ScriptHistory:
        """Called by rank 0. Records that the generation begins, unless the script has finished."""
        with outage_restarts(self._directory), outage_is_loss():
            history = self._read_history()
            if not history.has_finished:
                self._chain.begin(
                    self._generation,
                    0,  # a script may begin anywhere
                    self._place.num_workers,
                    stamp(self._clock.now()),
                )
        return history

    def _read_history(self) -> ScriptHistory:
        last = self._chain.last()
        # Of a launcher on this machine also what has not reached the store yet.
        events = [*self._directory.history(), *self._directory.here().launcher.read()[0]]

        def of(name: str) -> set[int]:
            return {one["generation"] for one in events if one["event"] == name}

        first = max(of("launched"), default=0)
        return ScriptHistory(
            num_generations=last.num_begun if last is not None else 0,
            is_untried=is_untried(first, self._chain.beginnings_since(first), of("cut_short")),
            has_finished=has_finished(first, of("finished")),
        )

    def started(self, device: str) -> None:
        """The script runs. Its launcher takes the time from when the file is there."""
        self._steps_file = StepsFile(self._steps_path)
        self._steps_file.begin(0)
        if not self._is_leader:
            return
        self._began = self._alive_at = self._clock.monotonic()
        self._journal.note(
            "started",
            generation=self._generation,
            resumed_from=None,
            step=0,
            total_steps=None,
            workers=self._place.num_workers,
            device=device,
            seconds={"import": 0.0, "build": 0.0, "load": 0.0},
        )

    def look(self) -> ScriptHeartbeat | None:
        """A new heartbeat of this rank's script, written down."""
        now = self._clock.monotonic()
        if self._is_leader and now - self._alive_at >= ALIVE_SECONDS:
            self._alive_at = now
            seconds = round(now - self._began)
            self._journal.note("alive", generation=self._generation, seconds=seconds)
        if self._is_leader and now - self._sent_at >= SEND_SECONDS:
            self._send()
        if now - self._read_at < READ_SECONDS:
            return None
        self._read_at = now
        return self._read()

    def _read(self) -> ScriptHeartbeat | None:
        heartbeat = self._heartbeats.new()
        if heartbeat is not None and heartbeat.step is not None:
            if self._first_step is None:
                self._first_step = max(0, heartbeat.step - 1)
                self._steps_file.begin(self._first_step)
            self._steps_file.took(heartbeat.step)
            if self._is_leader:
                self._records.add(heartbeat.step)
        return heartbeat

    def stuck(self, seconds: float, is_idle: bool) -> None:
        """`is_idle`: it uses no processor time; else it has no heartbeat."""
        self._journal.note(
            "stuck",
            step=self._records.step or 0,
            seconds=round(seconds),
            node=self._node,
            local_rank=self._local_rank,
            waits=None,
            idle=is_idle,
        )

    def end(self, code: int, how: str = "", is_cut_short: bool = False) -> None:
        """`how`: the script took the request to end, if there was one. `is_cut_short`: as in
        `ending`."""
        self._read()  # what was written last
        if not self._is_leader:
            return
        if is_cut_short:
            self._journal.note("cut_short", generation=self._generation)
            self._send_last(LAST_SEND_SECONDS)
            return
        step = self._records.step or 0
        match code:
            case Exit.DONE:
                self._finished(step)
            case Exit.STOPPED:
                self._journal.note("stopped", step=step, **({"ended": how} if how else {}))
                self._send_last(LAST_SEND_SECONDS)
            case _:
                self._send_last(LOST_SEND_SECONDS)

    def end_for_leader(self) -> None:
        """All are done, and rank 0, which writes that down, is gone before all had heard that it
        did. One of the others is enough: the first of the second node."""
        if self._place.rank != self._place.ranks_per_node:
            return
        step = 0
        with suppress(OSError, HeadwayError):  # what cannot be read is not there
            if self._read_history().has_finished:
                return
            step = (self._directory.metrics.last() or {}).get("step", 0)
        self._finished(step)

    def _finished(self, step: int) -> None:
        self._journal.note("finished", generation=self._generation, step=step)
        self._send_last(FINISHED_SEND_SECONDS)

    def _send_last(self, seconds: float) -> None:
        """Again and again, if that fails."""
        deadline = self._clock.monotonic() + seconds
        self._join(deadline)  # one that began before has not all
        while True:
            self._send()
            self._join(deadline)
            if self._is_sent or self._clock.monotonic() + FINISHED_PAUSE_SECONDS > deadline:
                return
            self._clock.sleep(FINISHED_PAUSE_SECONDS)

    def _join(self, deadline: float) -> None:
        if self._sending is not None:
            self._sending.join(max(0.0, deadline - self._clock.monotonic()))

    def _send(self) -> None:
        """In a thread: a store that does not answer holds up nothing."""
        self._sent_at = self._clock.monotonic()
        if self._sending is None or not self._sending.is_alive():
            self._is_sent = False
            self._sending = Thread(target=self._send_logs, name="send-logs", daemon=True)
            self._sending.start()

    def _send_logs(self) -> None:
        with suppress(OSError):  # what cannot be uploaded now is kept
            self._directory.events.flush()
            self._is_sent = True
        send_logs(self._directory)
