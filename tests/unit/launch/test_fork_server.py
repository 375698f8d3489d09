"""The launcher's side of the fork server, with workers that are a line of shell."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.errors import RunFailed
from headway.launch import fork_server
from headway.launch.fork_server import ForkServerProcess, WorkerExited, WorkerStarted
from headway.state.run_directory import RunDirectory
from support import shell_fork_server
from support.waiting import wait_for

SHELL = (sys.executable, str(Path(shell_fork_server.__file__)))
Make = Callable[..., ForkServerProcess]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with (tmp_path / "held").open("w") as lock:

        def make(*command: str) -> ForkServerProcess:
            log = tmp_path / "logs" / "parent.log"
            return ForkServerProcess(str(tmp_path), os.environ, log, lock.fileno(), command)

        yield make


def shell(make: Make, script: str) -> ForkServerProcess:
    return make(*SHELL, script)


def start(server: ForkServerProcess, folder: Path, *names: str) -> None:
    for name in names:
        environment = {"PATH": os.environ["PATH"], "NAME": name}
        server.start(name, [name], environment, folder / f"{name}.log")


def poll(
    server: ForkServerProcess, count: int, seconds: float = 20.0
) -> list[WorkerStarted | WorkerExited]:
    """So many reports, in order."""
    reports: list[WorkerStarted | WorkerExited] = []
    deadline = time.monotonic() + seconds
    while len(reports) < count:
        assert time.monotonic() < deadline, reports
        reports += server.poll(0.1)
    return reports


def test_a_worker_from_start_to_exit(make: Make, tmp_path: Path) -> None:
    with shell(make, 'echo "$NAME of $0, $OTHER"; exit 3') as server:
        start(server, tmp_path, "node-0.1")
        started, ended = poll(server, 2)
    assert isinstance(started, WorkerStarted)
    assert started.pid > 1
    assert (started.name, ended) == ("node-0.1", WorkerExited("node-0.1", 3))
    # Its own environment, and nothing of ours.
    assert (tmp_path / "node-0.1.log").read_text() == "node-0.1 of node-0.1, \n"


def test_how_each_of_several_ends(make: Make, tmp_path: Path) -> None:
    script = "case $NAME in a) exit 0;; b) exit 7;; c) kill -KILL $$;; d) kill -TERM $$;; esac"
    with shell(make, script) as server:
        start(server, tmp_path, "a", "b", "c", "d")
        reports = poll(server, 8)
    ends = {one.name: one.exit_code for one in reports if isinstance(one, WorkerExited)}
    assert ends == {"a": 0, "b": 7, "c": -9, "d": -15}
    pids = {one.name: one.pid for one in reports if isinstance(one, WorkerStarted)}
    assert len(set(pids.values())) == 4


def test_without_reports_it_waits_as_long_as_it_may(make: Make, tmp_path: Path) -> None:
    with shell(make, "exec sleep 60") as server:
        start(server, tmp_path, "a")
        (started,) = poll(server, 1)
        began = time.monotonic()
        assert server.poll(0.2) == []
        assert 0.15 < time.monotonic() - began < 50
        assert server.poll(0.0) == []
        assert isinstance(started, WorkerStarted)
        os.kill(started.pid, 9)
        assert poll(server, 1) == [WorkerExited("a", -9)]


def python(make: Make, code: str) -> ForkServerProcess:
    return make(sys.executable, "-c", code)


def test_reports_may_come_in_pieces(make: Make) -> None:
    parts = ['{"ready": 1.5}\n{"star', 'ted": "a", "pid": 7}', '\n{"ended": "a", "code": -9}\n']
    code = f"import time\nfor part in {parts!r}:\n print(part, end='', flush=True); time.sleep(0.2)"
    with python(make, f"{code}\ninput()") as server:
        assert poll(server, 2) == [WorkerStarted("a", 7), WorkerExited("a", -9)]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemExit(3)", "the fork server ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "the fork server was killed by signal 9"),
        ("import torsh", "the fork server ended with exit code 1"),
    ],
)
def test_the_fork_server_is_lost(make: Make, code: str, words: str) -> None:
    with python(make, code) as server:
        with pytest.raises(RunFailed) as failed:
            poll(server, 1)
        assert failed.value.message == words
        assert failed.value.hint == f"its log: {server.log}"
        if "torsh" in code:
            assert "No module named 'torsh'" in server.log.read_text()


def test_lost_while_workers_are_running(make: Make, tmp_path: Path) -> None:
    """They read the end of their stdin, and stop by themselves."""
    with shell(make, 'test "$NAME" = b && kill -KILL $PPID; cat; echo over') as server:
        start(server, tmp_path, "a", "b")
        with pytest.raises(RunFailed, match="was killed by signal 9"):
            poll(server, 4)
        start(server, tmp_path, "c")
        with pytest.raises(RunFailed, match="was killed by signal 9"):
            server.poll(1.0)
        log = tmp_path / "a.log"
        wait_for("its end", lambda: log.exists() and log.read_text() == "over\n", 20)
        assert not (tmp_path / "c.log").exists()


def test_workers_hear_when_the_launcher_is_done(make: Make, tmp_path: Path) -> None:
    with shell(make, "echo ready; cat; echo over") as server:
        start(server, tmp_path, "a")
        log = tmp_path / "a.log"
        wait_for("the worker", lambda: log.exists() and "ready" in log.read_text(), 20)
    wait_for("its end", lambda: log.read_text() == "ready\nover\n", 20)


def test_a_fork_server_that_does_not_exit_is_killed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "EXIT_SECONDS", 0.2)
    code = 'import time; print(\'{"started": "a", "pid": 7}\', flush=True); time.sleep(60)'
    with python(make, code) as server:
        poll(server, 1)
        began = time.monotonic()
    assert time.monotonic() - began < 50


def test_the_run_continues_as_long_as_a_worker_lives(tmp_path: Path) -> None:
    """Even without its launcher and fork server: nobody else may start it meanwhile."""
    directory = RunDirectory.create(tmp_path / "it", SystemClock())
    command: Sequence[str] = (
        *SHELL,
        "trap '' INT TERM; cat; while test ! -e $0; do sleep 0.01; done",
    )
    go = tmp_path / "go"
    log = tmp_path / "log"
    with (
        directory.held() as lock,
        ForkServerProcess(directory.location, os.environ, log, lock, command) as server,
    ):
        server.start("a", [str(go)], {"PATH": os.environ["PATH"]}, tmp_path / "a.log")
        (started,) = poll(server, 1)
    assert isinstance(started, WorkerStarted)
    assert directory.is_running()
    go.touch()
    wait_for("its end", lambda: not directory.is_running(), 20)


def test_where_the_working_folder_is_not_on_the_path_it_is_not_on_the_workers(
    tmp_path: Path,
) -> None:
    """In pods whose image is the user's: its working folder may have any files."""
    (tmp_path / "msgspec.py").write_text("raise SystemExit('of the working folder')\n")
    script = "import subprocess; from headway.launch.fork_server import COMMAND\n"
    script += "raise SystemExit(subprocess.run(COMMAND, input=b'').returncode)"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, timeout=120
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
