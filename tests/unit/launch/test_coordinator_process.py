"""The coordinator's process as the launcher keeps it: alive, at its address, and no longer than
the launcher itself."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from headway.errors import RunFailed
from headway.launch.coordinator_process import RESTART_SECONDS, CoordinatorProcess
from headway.member.coordinator.record import Entry, StoreRecord
from headway.member.coordinator.rules import Rules
from headway.member.protocol.generation import nobody
from headway.member.protocol.keys import read_key
from headway.member.worker.session import Session
from headway.member.worker.session_view import View
from headway.state.store import Store
from support.clock import Patient
from support.started_coordinator import ANY_PORT, coordinator_in
from support.waiting import wait_for

LONG = 20.0


@pytest.fixture
def clock() -> Patient:
    return Patient()


@pytest.fixture
def coordinator(tmp_path: Path, clock: Patient) -> CoordinatorProcess:
    return coordinator_in(tmp_path, clock)


def processes() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and "coordinator" in child.cmdline()
    ]


def process() -> psutil.Process:
    """Between fork and exec its command line is that of the test."""
    wait_for("a coordinator", lambda: len(processes()) == 1, LONG)
    (found,) = processes()
    return found


@contextmanager
def session(coordinator: CoordinatorProcess, name: str = "node-0.1/0") -> Iterator[Session]:
    key = read_key(coordinator.key)
    with Session(coordinator.address, key, "it", name) as session:
        session.wait_for("a connection", lambda view: view.connected, LONG)
        yield session


def test_workers_can_open_their_sessions(coordinator: CoordinatorProcess) -> None:
    with coordinator.start(after=6).wait(), session(coordinator) as opened:
        assert coordinator.address.startswith("127.0.0.1:")
        assert stat.S_IMODE(coordinator.key.stat().st_mode) == 0o600
        assert opened.view.incarnation == 1
        opened.be_ready()
        view = opened.wait_for("a place", lambda view: view.domain is not None, LONG)
        assert view.generation.number == 7, "generations go on behind those of earlier starts"
    assert processes() == []


def test_its_state_is_read_without_a_proxy(
    tmp_path: Path, clock: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods are given one for what is outside, and it knows nothing of an address in the pod."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    coordinator = coordinator_in(tmp_path, clock, http=ANY_PORT)
    with coordinator.start(after=6).wait():
        state = coordinator.state()
        assert state is not None
        assert state["generation"]["number"] == 6
    assert coordinator.state() is None, "it has ended"


def test_a_killed_coordinator_is_back_at_its_address(
    coordinator: CoordinatorProcess, clock: Patient
) -> None:
    with coordinator.start(after=6).wait(), session(coordinator) as opened:
        address = coordinator.address
        opened.be_ready()
        opened.wait_for("a place", lambda view: view.domain is not None, LONG)
        assert coordinator.keep_alive() is None
        process().kill()
        opened.wait_for("its end", lambda view: not view.connected, LONG)
        assert coordinator.keep_alive() is None, "not more often than once a second"
        clock.passed += RESTART_SECONDS
        assert wait_for("another start", coordinator.keep_alive, LONG) == "signal 9"

        def is_back(view: View) -> bool:
            return view.connected and view.incarnation == 2

        view = opened.wait_for("the next one", is_back, LONG)
        assert coordinator.address == address
        assert view.generation.number == 7, "`after` was for the first start only"
        clock.passed += RESTART_SECONDS
        assert coordinator.keep_alive() is None


def test_when_all_members_have_ended_the_next_ones_begin_at_once(
    coordinator: CoordinatorProcess,
) -> None:
    with coordinator.start(after=0).wait():
        with session(coordinator) as first:
            first.be_ready()
            first.wait_for("a place", lambda view: view.domain is not None, LONG)
        coordinator.restart_without_members()
        with session(coordinator) as second:
            second.be_ready()
            # Well before somebody who only closed a session is taken for lost.
            view = second.wait_for("a place", lambda view: view.domain is not None, 10.0)
            assert list(view.generation.workers()) == [second.name]
            assert view.generation.number == 2


def test_one_whose_place_was_given_to_another_is_not_let_in_again(
    tmp_path: Path, clock: Patient
) -> None:
    """It was only cut off; and the run may have been stopped meanwhile."""
    coordinator = coordinator_in(tmp_path, clock, Rules(max_domains=2, first_domains=2))
    with (
        coordinator.start(after=0).wait(),
        session(coordinator, "pod-a.1/0") as stays,
        session(coordinator, "pod-b.1/0") as goes,
    ):
        stays.be_ready()
        goes.be_ready()

        def members() -> list[str]:
            return sorted(stays.view.generation.workers())

        wait_for("both", lambda: members() == [stays.name, goes.name], LONG)
        coordinator.dismiss("pod-b")
        wait_for("it to be left", lambda: members() == [stays.name], LONG)
        process().kill()
        stays.wait_for("its end", lambda view: not view.connected, LONG)
        clock.passed += RESTART_SECONDS
        wait_for("another start", coordinator.keep_alive, LONG)
        stays.wait_for("the next one", lambda view: view.incarnation == 2, LONG)
        assert goes.view.incarnation == 1, "it was never welcomed by that one"


LAUNCHER = """
import sys
from pathlib import Path
from headway.clock import SystemClock
from headway.launch.coordinator_process import CoordinatorProcess, new_key_file
from headway.member.coordinator.rules import Rules
from headway.member.coordinator.settings import CoordinatorSettings
folder = Path(sys.argv[1])
key = new_key_file(folder)
settings = CoordinatorSettings("it", str(folder / "members"), str(key), Rules())
made = CoordinatorProcess(settings, folder, SystemClock())
made.start(after=0).wait()
print(made._process.pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_the_launcher_however_that_ends(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as launcher:
        assert launcher.stdout is not None
        left = psutil.Process(int(launcher.stdout.readline()))
        assert left.is_running()
        launcher.kill()
    wait_for("its end", lambda: not is_alive(left), 2.0)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def of_another_run(folder: Path) -> str:
    record = StoreRecord(Store(folder / "members"), "other")
    assert record.swap(record.read(), Entry(1, 1, nobody(1)))
    return "belongs to run other"


def damaged(folder: Path) -> str:
    (folder / "members").mkdir()
    (folder / "members" / "000000000001.json").write_text("{")
    return "000000000001.json is damaged"


def writable_by_all(folder: Path) -> str:
    os.chmod(folder / "key", 0o666)
    return "the run's key is writable by everyone"


@pytest.mark.parametrize("spoil", [of_another_run, damaged, writable_by_all])
def test_a_coordinator_that_cannot_start_says_why(
    coordinator: CoordinatorProcess, tmp_path: Path, spoil: object
) -> None:
    assert callable(spoil)
    why = spoil(tmp_path)
    with coordinator.start(after=0), pytest.raises(RunFailed) as failed:
        coordinator.wait()
    assert "the coordinator did not start: " in failed.value.message
    assert why in failed.value.message
    hint = f"chmod 600 {coordinator.key}" if spoil is writable_by_all else None
    assert failed.value.hint == hint
    assert processes() == []
