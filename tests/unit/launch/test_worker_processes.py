"""Worker processes over a real fork server, with workers that are a line of shell: what they are
called, how they exited, and whom a loss takes along."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.errors import Exit
from headway.launch.failure_domains import FailureDomain, WorkerProcess
from headway.launch.fork_server import ForkServerProcess
from headway.launch.worker_processes import BLAME_SECONDS, EXIT_SECONDS, WorkerProcesses
from headway.memory_limits import Memory
from headway.state.run_directory import RunDirectory
from support import shell_fork_server
from support.waiting import wait_for

COMMAND = (sys.executable, str(Path(shell_fork_server.__file__)), 'eval "$SCRIPT"')
SLEEPS = "exec sleep 60"
LONG = 20.0


class FastClock(SystemClock):
    """Seconds pass four times as fast."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def monotonic(self) -> float:
        return 4 * time.monotonic() + self.skipped


class Processes:
    """Each worker runs the script of its local rank."""

    def __init__(self, folder: Path, kernel: Path) -> None:
        self.clock = FastClock()
        self.scripts: dict[int, str] = {}
        directory = RunDirectory.create(folder / "it", self.clock)
        self.all = WorkerProcesses(
            directory, self.clock, self._environment, lambda node: f"node-{node}", Memory(kernel)
        )
        self.all.scratch = folder
        log = folder / "fork-server.log"
        self.all.fork_server = ForkServerProcess(
            directory.location, os.environ, log, None, command=COMMAND
        )

    def start(self, *scripts: str) -> FailureDomain:
        self.scripts = dict(enumerate(scripts))
        domain = FailureDomain([(0, rank) for rank in range(len(scripts))])
        self.all.start(domain)
        return domain

    def wait_until(self, what: str, look: Callable[[], bool]) -> None:
        def is_so() -> bool:
            self.all.poll(0.0)
            return look()

        wait_for(what, is_so, LONG)

    def wait_for_exit(self, domain: FailureDomain) -> list[int | None]:
        self.wait_until("their exit", lambda: domain.has_exited)
        return [worker.exit_code for worker in domain.workers]

    def wait_for_ready(self, worker: WorkerProcess) -> None:
        """It has printed something."""
        self.wait_until("a line of it", lambda: worker.log.stat().st_size > worker.log_start)

    def _environment(self, worker: WorkerProcess, store: Path) -> Mapping[str, str]:
        return {**os.environ, "SCRIPT": self.scripts[worker.local_rank], "STORE": store.name}


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """Where /proc is looked for."""
    made = tmp_path / "root"
    (made / "proc").mkdir(parents=True)
    count_oom_kills(made, 7)
    return made


def count_oom_kills(kernel: Path, number: int) -> None:
    (kernel / "proc/vmstat").write_text(f"nr_free_pages 5\noom_kill {number}\n")


@pytest.fixture
def processes(tmp_path: Path, kernel: Path) -> Iterator[Processes]:
    made = Processes(tmp_path, kernel)
    assert made.all.fork_server is not None
    with made.all.fork_server:
        yield made
        made.all.signal(signal.SIGKILL)


def test_each_start_of_a_worker_has_its_own_name_and_meets_elsewhere(processes: Processes) -> None:
    domain = processes.start('echo "$STORE"', "exit 0")
    first = [worker.name for worker in domain.workers]
    assert processes.wait_for_exit(domain) == [0, 0]
    processes.all.start(domain)
    assert first == ["node-0.1/0", "node-0.1/1"]
    assert [worker.name for worker in domain.workers] == ["node-0.2/0", "node-0.2/1"]
    assert processes.wait_for_exit(domain) == [0, 0]
    log = domain.workers[0].log
    assert log.read_text().split() == ["store-1", "store-2"]
    assert log.read_bytes()[domain.workers[0].log_start :] == b"store-2\n"
    assert processes.all.domains == [domain]


def test_how_workers_exited_and_why_is_known(processes: Processes) -> None:
    domain = processes.start('printf "no disk" > "$WORDS"; exit 3', SLEEPS)
    failed, other = domain.workers
    processes.wait_until("its exit", lambda: failed.exit_code is not None and bool(other.pid))
    assert (failed.exit_code, failed.last_words) == (3, "no disk")
    assert processes.all.exit_codes == [3, None]
    assert not processes.all.have_exited


@pytest.mark.parametrize(("counted", "expected"), [(8, True), (7, False)])
def test_a_kill_by_the_kernel_is_distinguished_from_one_by_hand(
    processes: Processes, kernel: Path, counted: int, expected: bool
) -> None:
    domain = processes.start("echo ready; exec sleep 60")
    (worker,) = domain.workers
    processes.wait_for_ready(worker)
    count_oom_kills(kernel, counted)
    worker.signal(signal.SIGKILL)
    assert processes.wait_for_exit(domain) == [-signal.SIGKILL]
    assert worker.out_of_memory is expected


def test_one_kill_by_the_kernel_explains_one_exit(processes: Processes, kernel: Path) -> None:
    domain = processes.start("echo ready; exec sleep 60", "echo ready; exec sleep 60")
    for worker in domain.workers:
        processes.wait_for_ready(worker)
    count_oom_kills(kernel, 8)
    domain.signal(signal.SIGKILL)
    processes.wait_for_exit(domain)
    assert sorted(bool(worker.out_of_memory) for worker in domain.workers) == [False, True]


def test_peers_of_a_lost_worker_are_killed(processes: Processes) -> None:
    domain = processes.start("kill -9 $$", SLEEPS)
    lost, peer = domain.workers
    processes.wait_until("its exit", lambda: lost.exit_code is not None and peer.pid is not None)
    processes.all.kill_peers(domain, lost)
    assert processes.wait_for_exit(domain) == [-signal.SIGKILL, -signal.SIGKILL]


def test_peers_of_a_worker_that_only_lost_a_peer_have_time_to_say_why(
    processes: Processes,
) -> None:
    script = 'trap "exit 4" USR1; echo ready; while :; do sleep 0.05; done'
    domain = processes.start(f"exit {Exit.PEER_LOST:d}", script)
    follows, guilty = domain.workers
    processes.wait_until("its exit", lambda: follows.exit_code is not None)
    processes.wait_for_ready(guilty)
    processes.all.kill_peers(domain, follows)
    guilty.signal(signal.SIGUSR1)
    assert processes.wait_for_exit(domain) == [Exit.PEER_LOST, 4]


def test_but_not_forever(processes: Processes) -> None:
    domain = processes.start(f"exit {Exit.PEER_LOST:d}", SLEEPS)
    follows, hangs = domain.workers
    processes.wait_until("its exit", lambda: follows.exit_code is not None and bool(hangs.pid))
    processes.all.kill_peers(domain, follows)
    processes.clock.skipped += BLAME_SECONDS + 0.1
    processes.all.kill_peers(domain, follows)
    assert processes.wait_for_exit(domain) == [Exit.PEER_LOST, -signal.SIGKILL]


def test_the_worker_that_failed_is_to_blame_not_those_that_lost_it(processes: Processes) -> None:
    domain = processes.start(f"exit {Exit.PEER_LOST:d}", "exit 1", f"exit {Exit.PEER_LOST:d}")
    processes.wait_for_exit(domain)
    assert processes.all.to_blame() is domain.workers[1]


def test_if_all_have_lost_a_peer_one_of_them_is_named_after_a_while(processes: Processes) -> None:
    domain = processes.start(f"exit {Exit.PEER_LOST:d}", SLEEPS)
    processes.wait_until("its exit", lambda: domain.workers[0].exit_code is not None)
    assert processes.all.to_blame() is domain.workers[0]


def test_workers_that_do_not_end_when_asked_are_killed(processes: Processes) -> None:
    polite = 'trap "exit 6" INT; echo ready; while :; do sleep 0.05; done'
    stubborn = 'trap "" INT; echo ready; while :; do sleep 0.05; done'
    domain = processes.start(polite, stubborn)
    for worker in domain.workers:
        processes.wait_for_ready(worker)
    asked = processes.clock.monotonic()
    processes.all.end_all()
    assert [worker.exit_code for worker in domain.workers] == [6, -signal.SIGKILL]
    assert processes.clock.monotonic() - asked > EXIT_SECONDS


def test_ending_does_not_wait_for_a_fork_server_that_is_gone(processes: Processes) -> None:
    domain = processes.start("echo ready; kill -9 $PPID; exec sleep 1")
    wait_for("a line of it", lambda: domain.workers[0].log.stat().st_size, LONG)
    processes.all.end_all()
    assert not processes.all.have_exited
