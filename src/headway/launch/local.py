"""A run on this machine: one process a worker, watched until all have ended.

The launcher and the workers share the run directory and exit codes, nothing else. A worker that
dies takes the run with it within seconds, and its own last words are what the user sees first.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headway.clock import Clock
from headway.errors import Exit, RunFailed
from headway.spec.resolve import Resolved
from headway.state.code import code_digest
from headway.state.generations import next_generation
from headway.state.rundir import Journal, RunDirectory

POLL_SECONDS = 0.1
BLAME_SECONDS = 1.0
"""After the first worker has ended, how long to wait for one that is more to blame than it."""
END_SECONDS = 5.0
"""Between asking the others to end and ending them."""
STOP_SECONDS = 300.0
"""For a save after Ctrl-C. A second Ctrl-C does not wait."""
WORKER = (sys.executable, "-m", "headway.train")
TRACEBACK = re.compile(r"^(\[rank\d+\]: )?Traceback \(most recent call last\)")
"""torch puts the rank before each line once workers have met."""


@dataclass
class Worker:
    rank: int
    process: subprocess.Popen[bytes]
    log: Path
    log_start: int
    """Bytes of the log that earlier starts of this run have written."""


class LocalRun:
    """Starts and watches the workers of one run. `worker` is the command of one, to which the run
    directory is added."""

    def __init__(
        self,
        resolved: Resolved,
        directory: RunDirectory,
        clock: Clock,
        worker: Sequence[str] = WORKER,
    ) -> None:
        self.resolved = resolved
        self.directory = directory
        self.clock = clock
        self.worker = worker
        self.journal = Journal(directory.launcher, clock)
        self.stop_asked_at: float | None = None
        self.stop_at_once = False
        self.workers: list[Worker] = []
        self.generation = 0

    def run(self, watch: Callable[[], None]) -> Exit:
        """Until the run has ended: DONE or STOPPED. Raises RunFailed with the first cause.
        `watch` is called several times a second."""
        with (
            self.directory.held() as lock,
            tempfile.TemporaryDirectory(prefix="headway-") as scratch,
        ):
            self.directory.write_spec(self.resolved)
            self.generation = next_generation(self.directory)
            self.journal.note(
                "launched",
                generation=self.generation,
                nodes=self.resolved.nodes,
                workers=self.resolved.num_workers,
                device=self.resolved.device,
                pid=os.getpid(),
                code_digest=self._code_digest(),
            )
            with suppress(OSError):  # seen from elsewhere as long as the run goes on
                self.directory.launcher.flush()
            try:
                for rank in range(self.resolved.num_workers):
                    self.workers.append(self._start(rank, Path(scratch) / "store", lock))
                if self.stop_asked_at is not None:
                    self._signal(signal.SIGTERM)  # those that were not there yet when it was asked
                return self._supervise(watch)
            finally:
                self._end_all()
                self._send_logs()

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

    def ask_to_stop(self) -> None:
        """From a signal handler: the first time to stop and save, the second time at once."""
        if self.stop_asked_at is None:
            self.stop_asked_at = self.clock.monotonic()
            self._signal(signal.SIGTERM)
        else:
            self.stop_at_once = True
            self._signal(signal.SIGKILL)

    def _start(self, rank: int, store: Path, lock: int) -> Worker:
        node, local_rank = divmod(rank, self.resolved.ranks_per_node)
        log = self.directory.log(node, local_rank)
        environment = {
            **os.environ,
            "HEADWAY_RANK": str(rank),
            "HEADWAY_STORE": str(store),
            "HEADWAY_GENERATION": str(self.generation),
            "OMP_NUM_THREADS": str(self.resolved.threads),
            "PYTHONUNBUFFERED": "1",
        }
        # Workers of one machine meet on the loopback, whatever its host name resolves to.
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        environment.setdefault("NCCL_SOCKET_IFNAME", "lo")
        # OpenMP threads that spin while they wait make a step ten times slower when anything else
        # wants the cores, and a fifth faster when nothing does. A laptop has a browser open.
        environment.setdefault("GOMP_SPINCOUNT", "1000")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            log_start = output.tell()
            process = subprocess.Popen(
                [*self.worker, self.directory.location],
                # Its other end is ours alone: when we die in any way, the worker reads the end of
                # it and stops. Until then the lock it inherits keeps a second start away.
                stdin=subprocess.PIPE,
                pass_fds=(lock,),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                # Ctrl-C in a terminal goes to the whole foreground group; workers are asked to
                # stop by us, once.
                start_new_session=True,
            )
        return Worker(rank, process, log, log_start)

    def _supervise(self, watch: Callable[[], None]) -> Exit:
        while True:
            watch()
            codes = {w.rank: w.process.poll() for w in self.workers}
            ended = {rank: code for rank, code in codes.items() if code is not None}
            if any(self._was_stopped_unsaved(code) for code in ended.values()):
                # The others cannot save without it.
                self.journal.note("stopped", saved=False)
                return Exit.STOPPED
            if any(code not in (Exit.DONE, Exit.STOPPED) for code in ended.values()):
                self._fail()
            if len(ended) == len(self.workers):
                watch()
                return Exit.STOPPED if Exit.STOPPED in ended.values() else Exit.DONE
            if (
                self.stop_asked_at is not None
                and self.clock.monotonic() - self.stop_asked_at > STOP_SECONDS
            ):
                how = f"did not save and stop within {STOP_SECONDS:.0f} s"
                self._note_failed(rank=0, how=how, words=f"the workers {how}")
                raise RunFailed(
                    f"the workers {how}", f"their logs are in {self.directory.local / 'logs'}"
                )
            self.clock.sleep(POLL_SECONDS)

    def _was_stopped_unsaved(self, code: int) -> bool:
        """By our own signal: before the worker could listen for it, or the second time."""
        asked = self.stop_asked_at is not None
        return (asked and code == -signal.SIGTERM) or (
            self.stop_at_once and code == -signal.SIGKILL
        )

    def _fail(self) -> None:
        """Finds whom to blame, and raises with that worker's last words."""
        deadline = self.clock.monotonic() + BLAME_SECONDS
        while True:
            failed = [
                (_blame(code), worker)
                for worker in self.workers
                if (code := worker.process.poll()) not in (None, Exit.DONE, Exit.STOPPED)
            ]
            blame, worker = max(failed, key=lambda pair: pair[0])
            if blame > 0 or self.clock.monotonic() > deadline:
                break
            self.clock.sleep(POLL_SECONDS)
        words = last_words(worker.log, worker.log_start)
        how = describe_end(worker.process.returncode)
        self._note_failed(worker.rank, how, words)
        raise RunFailed(f"{words}\nworker {worker.rank} {how}", f"its whole log is {worker.log}")

    def _note_failed(self, rank: int, how: str, words: str) -> None:
        node, local_rank = divmod(rank, self.resolved.ranks_per_node)
        self.journal.note(
            "failed", rank=rank, node=node, local_rank=local_rank, how=how, words=words
        )

    def _signal(self, number: int) -> None:
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(number)

    def _end_all(self) -> None:
        self._signal(signal.SIGTERM)
        deadline = self.clock.monotonic() + END_SECONDS
        while any(w.process.poll() is None for w in self.workers):
            if self.clock.monotonic() > deadline:
                self._signal(signal.SIGKILL)
            self.clock.sleep(POLL_SECONDS)


def _blame(code: int | None) -> int:
    """Higher is more to blame: one that lost a peer only follows another's end."""
    return 0 if code == Exit.PEER_LOST else 1


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
    return "\n".join(lines[-5:]) or "it printed nothing"
