"""A run on this machine: workers, forked from a warm parent and watched until all have ended.

The launcher and the workers share the run directory, the coordinator and exit codes, nothing else.
Workers that live and die together are a unit: one worker, or the ranks of a node that hold the
model together; or all of them, where the run starts anew when one is lost. A lost unit is started
again. A worker that ends with an error of its own would do so again: it ends the run within
seconds, and its last words are what the user sees first.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from headway.clock import Clock
from headway.errors import Exit, RunFailed
from headway.launch.coordinator import Coordinator
from headway.launch.parent import COMMAND, ParentLost, WarmParent
from headway.launch.units import (
    MOST_LOSSES,
    Unit,
    Worker,
    describe_end,
    is_failure,
    units_of,
    words_of,
)
from headway.launch.workers import DEFAULTS, Workers
from headway.member.messages import MAX_PODS
from headway.memory import Memory
from headway.plan.memory import HINT, needed_and_present
from headway.spec.resolve import Resolved
from headway.state.code import code_digest
from headway.state.generations import next_generation
from headway.state.lines import stands_at
from headway.state.rundir import Journal, RunDirectory

STRAGGLER_SECONDS = 10.0
"""Between the first worker that ends well and the last."""
NEW_SECONDS = 0.9
"""Less than the coordinator waits before it lets somebody join those who have the run's state."""
LEFT_SECONDS = 2.0
"""After a worker has left, how long to wait whether the others do so, too."""
STOP_SECONDS = 300.0
"""For a save after Ctrl-C. A second Ctrl-C does not wait."""
# Workers of one machine meet on the loopback, whatever its host name resolves to.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


class LocalRun:
    """Starts and watches the workers of one run. `parent` is the command of what forks them."""

    def __init__(
        self,
        resolved: Resolved,
        directory: RunDirectory,
        clock: Clock,
        parent: Sequence[str] = COMMAND,
        memory: Memory | None = None,
    ) -> None:
        self.resolved = resolved
        self.directory = directory
        self.clock = clock
        self.journal = Journal(directory.launcher, clock)
        self.stop_asked_at: float | None = None
        self.stop_at_once = False
        self.memory = memory or Memory()
        self.workers = Workers(directory, clock, self._worker_environment, _node_name, self.memory)
        self.generation = 0
        self._command = parent
        self._coordinator: Coordinator | None = None
        self._nodes = resolved.nodes
        self._over_at: float | None = None
        self._metrics_start = 0
        """Position in the metrics log at launch: what follows was written by this start."""

    def run(self, watch: Callable[[], None]) -> Exit:
        """Until the run has ended: DONE or STOPPED. Raises RunFailed with the first cause.
        `watch` is called several times a second."""
        resolved, directory = self.resolved, self.directory
        with ExitStack() as stack:
            lock = stack.enter_context(directory.held())
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-"))
            self.workers.scratch = Path(scratch)
            directory.write_spec(resolved)
            if directory.wanted_nodes() != resolved.nodes:  # else the next start is to find it, too
                directory.forget_wanted_nodes()
            self.generation = next_generation(directory)
            self._metrics_start = directory.here().metrics.read()[1]
            self.journal.note(
                "launched",
                generation=self.generation,
                nodes=resolved.nodes,
                workers=resolved.num_workers,
                device=resolved.device,
                mode="live" if resolved.is_live else "restart",
                pid=os.getpid(),
                code_digest=self._code_digest(),
            )
            with suppress(OSError):  # seen from elsewhere as long as the run goes on
                directory.launcher.flush()
            stack.callback(self._send_logs)
            log = directory.local / "logs" / "parent.log"
            self.workers.parent = stack.enter_context(
                WarmParent(directory.location, self._environment(), log, lock, self._command)
            )
            if resolved.is_live:
                self._coordinator = stack.enter_context(self._make_coordinator())
                self._coordinator.wait()
            stack.callback(self.workers.end_all)
            for unit in units_of(resolved, range(resolved.nodes)):
                self.workers.start(unit)
            try:
                return self._supervise(watch)
            except ParentLost as lost:
                self._note_failed(0, 0, how="lost its parent", words=lost.message)
                raise

    def ask_to_stop(self) -> None:
        """From a signal handler: the first time to stop and save, the second time at once."""
        if self.stop_asked_at is None:
            self.stop_asked_at = self.clock.monotonic()
            self.workers.signal(signal.SIGINT)
        else:
            self.stop_at_once = True
            self.workers.signal(signal.SIGKILL)

    # Starting

    def _make_coordinator(self) -> Coordinator:
        resolved = self.resolved
        ranks = resolved.domain_ranks
        domains = resolved.num_workers // ranks
        options = ["--domain-pods", str(ranks), "--node-pods", str(ranks)]
        coordinator = Coordinator(
            self.directory.name,
            self.directory.store.location("members"),
            self.workers.scratch,
            [*options, "--max", str(MAX_PODS // ranks), "--first", str(domains)],
            self.clock,
        )
        return coordinator.start("--after", str(self.generation - 1))

    def _worker_environment(self, worker: Worker, store: Path) -> dict[str, str]:
        rank = str(self._rank(worker))
        # Nodes that are played here share this machine's devices.
        environment = {**self._environment(), "HEADWAY_RANK": rank, "HEADWAY_DEVICE": rank}
        if self._coordinator is None:
            environment["HEADWAY_GENERATION"] = str(self.generation)
        else:
            environment["HEADWAY_COORDINATOR"] = self._coordinator.address
            environment["HEADWAY_KEY"] = str(self._coordinator.key)
            environment["HEADWAY_RUN"] = self._coordinator.run
            environment["HEADWAY_POD"] = worker.name
        if self._coordinator is None or self.resolved.sharded:
            environment["HEADWAY_STORE"] = str(store)
        return environment

    def _environment(self) -> dict[str, str]:
        return {**DEFAULTS, **LOOPBACK, **os.environ, "OMP_NUM_THREADS": str(self.resolved.threads)}

    # Watching

    def _supervise(self, watch: Callable[[], None]) -> Exit:
        while True:
            watch()
            for worker in self.workers.hear():
                self._note_started(worker)
            if self._coordinator is not None and (how := self._coordinator.keep_alive()):
                self.journal.note("coordinator_lost", how=how)
            codes = self.workers.codes
            if not self.resolved.is_live and any(map(self._was_stopped_unsaved, codes)):
                return self._stopped_unsaved()  # the others cannot save without it
            if any(is_failure(code) for code in codes):
                self._fail(None)
            is_ending = self.stop_asked_at is not None or Exit.DONE in codes
            for unit in list(self.workers.units):
                self._look_after(unit, is_ending)
            if self.workers.have_ended:
                watch()
                return self._end(codes)
            if not is_ending:
                self._follow_wanted_nodes()
            self._end_stragglers(codes)
            self._require_stop_in_time()

    def _note_started(self, worker: Worker) -> None:
        place = {"node": worker.node, "local_rank": worker.local_rank}
        self.journal.note("worker", **place, pid=worker.pid, name=worker.name)
        if self.stop_asked_at is not None:
            self.workers.signal(signal.SIGINT)  # it was not there yet when it was asked
        elif any(unit.is_leaving and worker in unit.workers for unit in self.workers.units):
            worker.signal(signal.SIGTERM)

    def _look_after(self, unit: Unit, is_ending: bool) -> None:
        lost = unit.lost
        if lost is None:
            if unit.has_ended and unit.is_leaving:
                self.workers.units.remove(unit)
            elif unit.has_ended and not is_ending:
                self._replace_leaver(unit)
            elif not is_ending and any(worker.code is not None for worker in unit.workers):
                unit.signal(signal.SIGTERM)  # one has left, the others are of no use alone
            return
        if not unit.has_ended:
            self.workers.end_others(unit, lost)
            return
        if is_ending:
            return
        if unit.is_leaving:
            self.workers.units.remove(unit)
            return
        assert lost.code is not None
        how = describe_end(lost.code, lost.out_of_memory)
        self.journal.note("lost", node=lost.node, local_rank=lost.local_rank, how=how)
        if lost.out_of_memory and not self._has_made_a_step():
            self._fail_for_memory(lost)
        if unit.losses.add(self._step(), self.clock.monotonic()) >= MOST_LOSSES:
            self._fail(lost)
        if self._coordinator is None:
            self.generation = next_generation(self.directory)
        elif not self._somebody_has_the_state():
            self._coordinator.begin_anew()  # it would wait for them to come back
        self.workers.start(unit)

    def _somebody_has_the_state(self) -> bool:
        """One that was started a moment ago has not been given it yet."""
        living = [w for unit in self.workers.units for w in unit.workers if w.code is None]
        latest = self.clock.monotonic() - NEW_SECONDS
        return any(worker.started_at < latest for worker in living)

    def _replace_leaver(self, unit: Unit) -> None:
        """Somebody else has asked it to leave, as those do who want a machine back. Unless all
        stop: the others are about to end as well."""
        now = self.clock.monotonic()
        if unit.left_at is None:
            unit.left_at = now
        if now - unit.left_at > LEFT_SECONDS:
            self.journal.note("left", node=unit.places[0][0])
            self.workers.start(unit)

    def _follow_wanted_nodes(self) -> None:
        """`headway scale`: new nodes are started, and those with the highest numbers leave."""
        wanted = self.directory.wanted_nodes()
        if wanted is None or wanted == self._nodes or self._coordinator is None:
            return
        self.journal.note("scaled", nodes=wanted, before=self._nodes)
        for unit in units_of(self.resolved, range(self._nodes, wanted)):
            self.workers.start(unit)
        for unit in self.workers.units:
            if unit.places[0][0] >= wanted and not unit.is_leaving:
                unit.is_leaving = True
                unit.signal(signal.SIGTERM)
        self._nodes = wanted

    def _end_stragglers(self, codes: list[int | None]) -> None:
        """Nobody ends well before all is saved. Who is still there long after that stands still:
        the others have gone on without it, and one day it would go on by itself."""
        is_over = Exit.DONE in codes or (self.stop_asked_at is not None and Exit.STOPPED in codes)
        if not is_over:
            return
        now = self.clock.monotonic()
        if self._over_at is None:
            self._over_at = now
        if now - self._over_at > STRAGGLER_SECONDS:
            self.workers.signal(signal.SIGKILL)

    def _require_stop_in_time(self) -> None:
        asked = self.stop_asked_at
        if asked is not None and self.clock.monotonic() - asked > STOP_SECONDS:
            how = f"did not save and stop within {STOP_SECONDS:.0f} s"
            self._note_failed(0, 0, how=how, words=f"the workers {how}")
            raise RunFailed(
                f"the workers {how}", f"their logs are in {self.directory.local / 'logs'}"
            )

    def _end(self, codes: list[int | None]) -> Exit:
        """All workers have ended, and nobody is started any more."""
        if Exit.DONE in codes:
            return Exit.DONE
        if Exit.STOPPED in codes:
            return Exit.STOPPED
        if all(map(self._was_stopped_unsaved, codes)):
            return self._stopped_unsaved()
        self._fail(None)
        raise AssertionError("somebody is to blame")

    def _stopped_unsaved(self) -> Exit:
        self.journal.note("stopped", saved=False)
        return Exit.STOPPED

    def _was_stopped_unsaved(self, code: int | None) -> bool:
        """By our own signal: before the worker could listen for it, or the second time."""
        asked = self.stop_asked_at is not None
        return (asked and code in (-signal.SIGINT, -signal.SIGTERM)) or (
            self.stop_at_once and code == -signal.SIGKILL
        )

    # Ending

    def _step(self) -> int:
        """The newest that was committed."""
        return stands_at(self.directory.here().metrics.last() or {"rewind": 0})

    def _has_made_a_step(self) -> bool:
        """Since launch. The log may show later steps of an earlier start, which are done again."""
        records, _ = self.directory.here().metrics.read(self._metrics_start)
        return any("step" in record for record in records)

    def _fail_for_memory(self, worker: Worker) -> None:
        """Before the first step: it would happen again."""
        figures = needed_and_present(self.resolved, self._nodes, self.memory.limit_bytes())
        words = f"out of memory before the first step: {figures}"
        how = describe_end(-signal.SIGKILL, out_of_memory=True)
        self._note_failed(worker.node, worker.local_rank, how, words)
        raise RunFailed(f"{words}\nworker {self._rank(worker)} {how}", HINT)

    def _fail(self, worker: Worker | None) -> None:
        """Raises with the last words of the one to blame."""
        times = "" if worker is None else f", {MOST_LOSSES} times without a new step in between"
        worker = worker or self.workers.to_blame()
        assert worker.code is not None
        words, hint = words_of(worker)
        how = describe_end(worker.code, worker.out_of_memory) + times
        self._note_failed(worker.node, worker.local_rank, how, words or how)
        number = self._rank(worker)
        said = f"{words}\nworker {number} {how}" if words else f"worker {number} {how} in silence"
        raise RunFailed(said, hint or f"its whole log is {worker.log}")

    def _note_failed(self, node: int, local_rank: int, how: str, words: str) -> None:
        rank = node * self.resolved.ranks_per_node + local_rank
        self.journal.note(
            "failed", rank=rank, node=node, local_rank=local_rank, how=how, words=words
        )

    def _send_logs(self) -> None:
        """Where the run directory is far away: what was printed and noted here."""
        with suppress(OSError):
            self.directory.launcher.flush()
            if not self.directory.store.is_local:
                folders = (self.directory.local / "logs", self.directory.tensorboard)
                for path in (p for folder in folders for p in folder.rglob("*") if p.is_file()):
                    name = str(path.relative_to(self.directory.local))
                    self.directory.store.write(name, path.read_bytes())

    def _code_digest(self) -> str | None:
        code = self.resolved.run.code
        return code_digest(Path(self.resolved.folder, code.path)) if code else None

    def _rank(self, worker: Worker) -> int:
        return worker.node * self.resolved.ranks_per_node + worker.local_rank


def _node_name(node: int) -> str:
    return f"node-{node}"
