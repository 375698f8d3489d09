"""A run on this machine: workers, forked from a warm parent and watched until all have ended.

The launcher and the workers share the run directory, the coordinator and exit codes, nothing else.
Workers that live and die together are a unit: one worker, or the ranks of a node that hold the
model together; or all of them, where the run starts anew when one is lost. A lost unit is started
again. A worker that ends with an error of its own would do so again: it ends the run within
seconds, and its last words are what the user sees first.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from headway.clock import Clock
from headway.errors import Exit, RunFailed
from headway.launch.coordinator import Coordinator
from headway.launch.parent import COMMAND, Ended, ParentLost, Started, WarmParent
from headway.member.messages import MAX_PODS
from headway.spec.resolve import Resolved
from headway.state.code import code_digest
from headway.state.generations import next_generation
from headway.state.lines import stands_at
from headway.state.rundir import Journal, RunDirectory

POLL_SECONDS = 0.1
BLAME_SECONDS = 1.0
"""After the first worker has ended, how long to wait for one that is more to blame than it."""
END_SECONDS = 5.0
"""Between asking the others to end and ending them."""
STRAGGLER_SECONDS = 10.0
"""Between the first worker that ends well and the last."""
NEW_SECONDS = 0.9
"""Less than the coordinator waits before it lets somebody join those who have the run's state."""
LEFT_SECONDS = 2.0
"""After a worker has left, how long to wait whether the others do so, too."""
STOP_SECONDS = 300.0
"""For a save after Ctrl-C. A second Ctrl-C does not wait."""
MOST_LOSSES = 3
"""Of one unit, without a new step of the run in between."""
TRACEBACK = re.compile(r"^(\[rank\d+\]: )?Traceback \(most recent call last\)")
"""torch puts the rank before each line once workers have met."""


@dataclass
class Worker:
    name: str
    node: int
    local_rank: int
    log: Path
    log_start: int
    """Bytes of the log that earlier starts of this run have written."""
    started_at: float
    pid: int | None = None
    code: int | None = None
    """How it ended."""


@dataclass(eq=False)
class Unit:
    """Workers that are started and lost together."""

    places: list[tuple[int, int]]
    """(node, local rank) of each."""
    workers: list[Worker] = field(default_factory=list)
    starts: int = 0
    losses: int = 0
    """In a row, without a new step of the run in between."""
    step: int = 0
    """The highest that the run had reached when this unit was last lost."""
    lost_at: float | None = None
    left_at: float | None = None
    """When all of it had left, without having been asked to by us."""
    is_leaving: bool = False

    @property
    def has_ended(self) -> bool:
        return all(worker.code is not None for worker in self.workers)

    @property
    def lost(self) -> Worker | None:
        """One that was lost. Whoever was killed tells more than one that lost its peer."""
        lost = [worker for worker in self.workers if _is_loss(worker.code)]
        return min(lost, key=lambda worker: worker.code or 0, default=None)


class LocalRun:
    """Starts and watches the workers of one run. `parent` is the command of what forks them."""

    def __init__(
        self,
        resolved: Resolved,
        directory: RunDirectory,
        clock: Clock,
        parent: Sequence[str] = COMMAND,
    ) -> None:
        self.resolved = resolved
        self.directory = directory
        self.clock = clock
        self.journal = Journal(directory.launcher, clock)
        self.stop_asked_at: float | None = None
        self.stop_at_once = False
        self.units: list[Unit] = []
        self.generation = 0
        self._command = parent
        self._parent: WarmParent | None = None
        self._coordinator: Coordinator | None = None
        self._scratch = Path()
        self._nodes = resolved.nodes
        self._num_starts = 0
        self._starts_at: Counter[tuple[int, int]] = Counter()
        """By place: one that comes while another still leaves must not have its name."""
        self._over_at: float | None = None

    def run(self, watch: Callable[[], None]) -> Exit:
        """Until the run has ended: DONE or STOPPED. Raises RunFailed with the first cause.
        `watch` is called several times a second."""
        resolved, directory = self.resolved, self.directory
        with ExitStack() as stack:
            lock = stack.enter_context(directory.held())
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-"))
            self._scratch = Path(scratch)
            directory.write_spec(resolved)
            if directory.wanted_nodes() != resolved.nodes:  # else the next start is to find it, too
                directory.forget_wanted_nodes()
            self.generation = next_generation(directory)
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
            self._parent = stack.enter_context(
                WarmParent(directory.location, self._environment(), log, lock, self._command)
            )
            if resolved.is_live:
                self._coordinator = stack.enter_context(self._make_coordinator())
                self._coordinator.wait()
            stack.callback(self._end_all)
            for places in self._divided(range(resolved.nodes)):
                self._start(Unit(places))
            try:
                return self._supervise(watch)
            except ParentLost as lost:
                self._note_failed(0, 0, how="lost its parent", words=lost.message)
                raise

    def ask_to_stop(self) -> None:
        """From a signal handler: the first time to stop and save, the second time at once."""
        if self.stop_asked_at is None:
            self.stop_asked_at = self.clock.monotonic()
            self._signal(signal.SIGINT)
        else:
            self.stop_at_once = True
            self._signal(signal.SIGKILL)

    # Starting

    def _make_coordinator(self) -> Coordinator:
        resolved = self.resolved
        ranks = resolved.domain_ranks
        domains = resolved.num_workers // ranks
        options = ["--domain-pods", str(ranks), "--node-pods", str(ranks)]
        coordinator = Coordinator(
            self.directory.name,
            self.directory.store.location("members"),
            self._scratch,
            [*options, "--max", str(MAX_PODS // ranks), "--first", str(domains)],
            self.clock,
        )
        return coordinator.start("--after", str(self.generation - 1))

    def _divided(self, nodes: Sequence[int]) -> list[list[tuple[int, int]]]:
        """Places of these nodes, by what is lost together."""
        ranks = range(self.resolved.ranks_per_node)
        if not self.resolved.is_live:
            return [[(node, rank) for node in nodes for rank in ranks]]
        if self.resolved.sharded:
            return [[(node, rank) for rank in ranks] for node in nodes]
        return [[(node, rank)] for node in nodes for rank in ranks]

    def _start(self, unit: Unit) -> None:
        assert self._parent is not None
        if unit not in self.units:
            self.units.append(unit)
        self._num_starts += 1
        self._starts_at[unit.places[0]] += 1
        unit.starts = self._starts_at[unit.places[0]]
        unit.workers, unit.lost_at, unit.left_at = [], None, None
        store = self._scratch / f"store-{self._num_starts}"
        for node, local_rank in unit.places:
            log = self.directory.log(node, local_rank)
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
            name = f"node-{node}.{unit.starts}/{local_rank}"
            now, log_start = self.clock.monotonic(), log.stat().st_size
            unit.workers.append(Worker(name, node, local_rank, log, log_start, now))
            environment = self._worker_environment(name, node, local_rank, store)
            self._parent.start(name, [self.directory.location], environment, log)

    def _worker_environment(
        self, name: str, node: int, local_rank: int, store: Path
    ) -> dict[str, str]:
        environment = {
            **self._environment(),
            "HEADWAY_RANK": str(node * self.resolved.ranks_per_node + local_rank),
        }
        if self._coordinator is None:
            environment["HEADWAY_GENERATION"] = str(self.generation)
        else:
            environment["HEADWAY_COORDINATOR"] = self._coordinator.address
            environment["HEADWAY_KEY"] = str(self._coordinator.key)
            environment["HEADWAY_RUN"] = self._coordinator.run
            environment["HEADWAY_POD"] = name
        if self._coordinator is None or self.resolved.sharded:
            environment["HEADWAY_STORE"] = str(store)
        return environment

    def _environment(self) -> dict[str, str]:
        return {**DEFAULTS, **os.environ, "OMP_NUM_THREADS": str(self.resolved.threads)}

    # Watching

    def _supervise(self, watch: Callable[[], None]) -> Exit:
        assert self._parent is not None
        while True:
            watch()
            for news in self._parent.news(POLL_SECONDS):
                self._hear(news)
            if self._coordinator is not None and (how := self._coordinator.keep_alive()):
                self.journal.note("coordinator_lost", how=how)
            codes = [worker.code for unit in self.units for worker in unit.workers]
            if not self.resolved.is_live and any(map(self._was_stopped_unsaved, codes)):
                return self._stopped_unsaved()  # the others cannot save without it
            if any(_is_failure(code) for code in codes):
                self._fail(None)
            is_ending = self.stop_asked_at is not None or Exit.DONE in codes
            for unit in list(self.units):
                self._look_after(unit, is_ending)
            if all(unit.has_ended for unit in self.units):
                watch()
                return self._end(codes)
            if not is_ending:
                self._follow_wanted_nodes()
            self._end_stragglers(codes)
            self._require_stop_in_time()

    def _hear(self, news: Started | Ended) -> None:
        workers = [worker for unit in self.units for worker in unit.workers]
        worker = next((worker for worker in workers if worker.name == news.name), None)
        if worker is None:
            return
        if isinstance(news, Ended):
            worker.code = news.code
            return
        worker.pid = news.pid
        place = {"node": worker.node, "local_rank": worker.local_rank}
        self.journal.note("worker", **place, pid=worker.pid, name=worker.name)
        if self.stop_asked_at is not None:
            self._signal(signal.SIGINT)  # it was not there yet when it was asked
        elif any(unit.is_leaving and worker in unit.workers for unit in self.units):
            _signal(worker, signal.SIGTERM)

    def _look_after(self, unit: Unit, is_ending: bool) -> None:
        lost = unit.lost
        if lost is None:
            if unit.has_ended and unit.is_leaving:
                self.units.remove(unit)
            elif unit.has_ended and not is_ending:
                self._replace_leaver(unit)
            elif not is_ending and any(worker.code is not None for worker in unit.workers):
                for worker in unit.workers:  # one has left, and the others are of no use alone
                    _signal(worker, signal.SIGTERM)
            return
        if not unit.has_ended:
            self._end_others(unit, lost)
            return
        if is_ending:
            return
        if unit.is_leaving:
            self.units.remove(unit)
            return
        assert lost.code is not None
        how = describe_end(lost.code)
        self.journal.note("lost", node=lost.node, local_rank=lost.local_rank, how=how)
        step = stands_at(self.directory.here().metrics.last() or {"rewind": 0})
        unit.losses = 1 if step > unit.step else unit.losses + 1
        unit.step = max(step, unit.step)
        if unit.losses >= MOST_LOSSES:
            self._fail(lost)
        if self._coordinator is None:
            self.generation = next_generation(self.directory)
        elif not self._somebody_has_the_state():
            self._coordinator.begin_anew()  # it would wait for them to come back
        self._start(unit)

    def _somebody_has_the_state(self) -> bool:
        """One that was started a moment ago has not been given it yet."""
        living = [w for unit in self.units for w in unit.workers if w.code is None]
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
            self._start(unit)

    def _end_others(self, unit: Unit, lost: Worker) -> None:
        """They cannot go on without it. But who has only lost a peer is not to blame: one that is
        may be about to say why."""
        now = self.clock.monotonic()
        if unit.lost_at is None:
            unit.lost_at = now
        if lost.code != Exit.PEER_LOST or now - unit.lost_at > BLAME_SECONDS:
            for worker in unit.workers:
                _signal(worker, signal.SIGKILL)

    def _follow_wanted_nodes(self) -> None:
        """`headway scale`: new nodes are started, and those with the highest numbers leave."""
        wanted = self.directory.wanted_nodes()
        if wanted is None or wanted == self._nodes or self._coordinator is None:
            return
        self.journal.note("scaled", nodes=wanted, before=self._nodes)
        for places in self._divided(range(self._nodes, wanted)):
            self._start(Unit(places))
        for unit in self.units:
            if unit.places[0][0] >= wanted and not unit.is_leaving:
                unit.is_leaving = True
                for worker in unit.workers:
                    _signal(worker, signal.SIGTERM)
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
            self._signal(signal.SIGKILL)

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

    def _fail(self, worker: Worker | None) -> None:
        """Finds whom to blame, and raises with that worker's last words."""
        assert self._parent is not None
        deadline = self.clock.monotonic() + BLAME_SECONDS
        times = "" if worker is None else f", {MOST_LOSSES} times without a new step in between"
        while worker is None:
            ended = [worker for unit in self.units for worker in unit.workers]
            failed = [one for one in ended if _is_failure(one.code) or _is_loss(one.code)]
            worst = max(failed, key=lambda one: _blame(one.code))
            if _blame(worst.code) > 0 or self.clock.monotonic() > deadline:
                worker = worst
                break
            for news in self._parent.news(POLL_SECONDS):
                self._hear(news)
        assert worker.code is not None
        words = last_words(worker.log, worker.log_start)
        how = describe_end(worker.code) + times
        self._note_failed(worker.node, worker.local_rank, how, words or how)
        number = worker.node * self.resolved.ranks_per_node + worker.local_rank
        said = f"{words}\nworker {number} {how}" if words else f"worker {number} {how} in silence"
        raise RunFailed(said, f"its whole log is {worker.log}")

    def _note_failed(self, node: int, local_rank: int, how: str, words: str) -> None:
        rank = node * self.resolved.ranks_per_node + local_rank
        self.journal.note(
            "failed", rank=rank, node=node, local_rank=local_rank, how=how, words=words
        )

    def _signal(self, number: int) -> None:
        for unit in self.units:
            for worker in unit.workers:
                _signal(worker, number)

    def _end_all(self) -> None:
        assert self._parent is not None
        self._signal(signal.SIGINT)
        deadline = self.clock.monotonic() + END_SECONDS
        while not all(unit.has_ended for unit in self.units):
            if self.clock.monotonic() > deadline:
                self._signal(signal.SIGKILL)
            try:
                for news in self._parent.news(POLL_SECONDS):
                    self._hear(news)
            except ParentLost:
                return  # nobody is left who could say it; they have read the end of their stdin

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


DEFAULTS: Mapping[str, str] = {
    "PYTHONUNBUFFERED": "1",
    # Workers of one machine meet on the loopback, whatever its host name resolves to.
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    # OpenMP threads that spin while they wait make a step ten times slower when anything else wants
    # the cores, and a fifth faster when nothing does. A laptop has a browser open.
    "GOMP_SPINCOUNT": "1000",
}


def _signal(worker: Worker, number: int) -> None:
    if worker.pid is not None and worker.code is None:
        with suppress(ProcessLookupError):  # it has ended, and the news is on its way
            os.kill(worker.pid, number)


def _is_loss(code: int | None) -> bool:
    """By a signal, or because its peers were lost: it can be started again."""
    return code is not None and (code < 0 or code == Exit.PEER_LOST)


def _is_failure(code: int | None) -> bool:
    """By an error of its own."""
    return code is not None and code > 0 and code not in (Exit.STOPPED, Exit.PEER_LOST)


def _blame(code: int | None) -> int:
    """Higher is more to blame: one that lost a peer only follows another's end."""
    return 2 if _is_failure(code) else 0 if code == Exit.PEER_LOST else 1


def describe_end(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    known = -code in {int(number) for number in signal.Signals}
    name = signal.Signals(-code).name if known else f"signal {-code}"
    hint = " (out of memory, if nobody killed it by hand)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def last_words(log: Path, start: int = 0, most_lines: int = 40) -> str:
    """The last traceback in a worker's log from byte `start` on, else its last lines."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            lines = file.read().decode("utf-8", errors="replace").rstrip().splitlines()
    except FileNotFoundError:
        lines = []
    for index in range(len(lines) - 1, -1, -1):
        if found := TRACEBACK.match(lines[index]):
            shown = [line.removeprefix(found[1] or "") for line in lines[index:]]
            return "\n".join(shown[-most_lines:])
    return "\n".join(lines[-5:])
