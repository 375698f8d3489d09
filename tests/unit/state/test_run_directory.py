"""The run directory: made, opened, refused; who holds it; what happened, in order."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.errors import BadInput, Exit, NotFound, StillRunning
from headway.state.run_directory import Journal, RunDirectory, send_logs
from support.fake_s3 import fake_s3
from support.waiting import wait_for


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "runs" / "it", SystemClock())


def test_what_is_made_can_be_opened(directory: RunDirectory) -> None:
    assert RunDirectory.open(directory.location).name == "it"
    before = directory.store.read("run.json")
    again = RunDirectory.create(directory.location, SystemClock(), forked_from={"run": "x"})
    assert again.location == directory.location
    assert directory.store.read("run.json") == before, "a second start makes nothing anew"
    assert directory.history() == directory.logs() == directory.steps() == []
    assert RunDirectory.exists(directory.location)


def test_what_it_was_forked_from_is_in_its_record(tmp_path: Path) -> None:
    origin = {"run": "runs/it", "step": 300}
    made = RunDirectory.create(tmp_path / "new", SystemClock(), forked_from=origin)
    assert made.record()["forked_from"] == origin
    assert (made.record()["name"], made.record()["version"]) == ("new", 1)


def test_no_run_there(tmp_path: Path) -> None:
    assert not RunDirectory.exists(tmp_path / "nowhere")
    with pytest.raises(NotFound) as caught:
        RunDirectory.open(tmp_path / "nowhere")
    assert (caught.value.exit_code, caught.value.hint) == (
        Exit.NOT_FOUND,
        "headway list",
    )
    assert list(tmp_path.iterdir()) == [], "looking makes nothing"


def test_a_run_of_another_version(directory: RunDirectory) -> None:
    directory.store.write("run.json", json.dumps({**directory.record(), "version": 2}).encode())
    with pytest.raises(
        BadInput, match="has run directory version 2, but this Headway reads version 1"
    ):
        RunDirectory.open(directory.location)
    with pytest.raises(BadInput):
        RunDirectory.create(directory.location, SystemClock())


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"3"])
def test_a_damaged_record(directory: RunDirectory, content: bytes) -> None:
    directory.store.write("run.json", content)
    with pytest.raises(BadInput, match=r"run\.json is damaged"):
        RunDirectory.open(directory.location)


def test_a_missing_or_damaged_spec(directory: RunDirectory) -> None:
    assert not directory.has_spec()
    with pytest.raises(NotFound, match="run it was never started"):
        directory.read_spec()
    directory.store.write("spec.json", b'{"version": 1}')
    with pytest.raises(BadInput, match=r"spec\.json is damaged"):
        directory.read_spec()


def test_logs_in_order(directory: RunDirectory) -> None:
    directory.log(0, 0).parent.mkdir()
    for node, rank in ((1, 0), (0, 1), (0, 0)):
        directory.log(node, rank).touch()
    assert [log.name for log in directory.logs()] == [
        "node-0.rank-0.log",
        "node-0.rank-1.log",
        "node-1.rank-0.log",
    ]


class Ticking(SystemClock):
    def __init__(self) -> None:
        self.time = 1_800_000_000.0

    def now(self) -> float:
        self.time += 1
        return self.time


def test_what_happened_in_order_whoever_saw_it(directory: RunDirectory) -> None:
    clock = Ticking()
    launcher, leader = Journal(directory.launcher, clock), Journal(directory.events, clock)
    launcher.note("launched", pid=7)
    leader.note("started")
    leader.note("saved", step=3)
    launcher.note("failed")
    launcher.note("launched")
    assert [event["event"] for event in directory.history()] == [
        "launched",
        "started",
        "saved",
        "failed",
        "launched",
    ]
    assert directory.history()[0] == {
        "time": "2027-01-15T08:00:01.000Z",
        "event": "launched",
        "pid": 7,
    }


def test_steps_are_there_once_each(directory: RunDirectory) -> None:
    for line in ({"step": 1}, {"step": 2}, {"rewind": 1}, {"step": 2, "again": True}):
        directory.metrics.append(line)
    assert directory.steps() == [{"step": 1}, {"step": 2, "again": True}]


# --- in an object store


def test_a_run_in_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with fake_s3():
        directory = RunDirectory.create("s3://bucket/runs/it/", SystemClock())
        other = RunDirectory.create("s3://bucket/others/it", SystemClock())
        assert (directory.name, directory.location) == ("it", "s3://bucket/runs/it")
        assert directory.local.parent == tmp_path / "cache" / "headway"
        assert directory.local != other.local, "two runs of one name do not share a lock"
        directory.events.append({"time": "t", "event": "started"})
        assert directory.history() == []
        assert directory.here().history() == [{"time": "t", "event": "started"}]
        send_logs(directory)
        assert directory.history() == [{"time": "t", "event": "started"}]
        with directory.held():
            assert RunDirectory.open("s3://bucket/runs/it").is_running()
            assert not other.is_running()


def test_a_store_that_fails_at_the_end_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with fake_s3() as s3:
        directory = RunDirectory.create("s3://bucket/it", SystemClock())
        directory.events.append({"time": "t", "event": "finished"})
        directory.metrics.append({"step": 1})
        s3.troubles.append("refused")
        send_logs(directory)
        assert directory.steps() == [{"step": 1}], "one that cannot be sent holds up no other"
        send_logs(directory)
        assert [event["event"] for event in directory.history()] == ["finished"]


# --- the lock

HOLDER = """\
import sys
from headway.state.run_directory import RunDirectory
with RunDirectory(sys.argv[1]).held():
    print("held", flush=True)
    sys.stdin.read()
"""


def start_holder(directory: RunDirectory) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, directory.location],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_one_process_runs_it_and_others_see_that(directory: RunDirectory) -> None:
    assert not directory.is_running()
    assert directory.launcher_pid() is None
    with start_holder(directory) as holder:
        assert directory.is_running()
        assert directory.launcher_pid() == holder.pid
        with pytest.raises(StillRunning, match="run it is already running") as caught:
            directory.held().__enter__()
        assert (caught.value.exit_code, caught.value.hint) == (5, "headway status it")
        assert directory.is_running(), "to be refused does not end it"
        assert directory.launcher_pid() == holder.pid, "nor takes its name away"
        holder.communicate("")
    assert not directory.is_running()
    assert directory.launcher_pid() is None, "a number in the file says nothing without the lock"
    with directory.held():
        assert RunDirectory(directory.location).is_running()


def test_a_holder_that_is_killed_lets_go(directory: RunDirectory) -> None:
    with start_holder(directory) as holder:
        holder.kill()
    assert not directory.is_running()
    with directory.held():
        assert directory.launcher_pid() == os.getpid()


def test_looking_writes_nothing(directory: RunDirectory) -> None:
    before = sorted(directory.store.path().rglob("*"))
    directory.is_running()
    directory.launcher_pid()
    directory.history()
    directory.metrics.last()
    directory.logs()
    assert sorted(directory.store.path().rglob("*")) == before


def test_what_a_launcher_notes_reaches_an_object_store_while_the_run_is_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with fake_s3():
        directory = RunDirectory.create("s3://bucket/it", SystemClock())
        Journal(directory.launcher, Impatient()).note("scaled", nodes=3, before=2)
        (event,) = wait_for("the event", lambda: directory.history(), seconds=10)
    assert (event["event"], event["nodes"]) == ("scaled", 3)


class Impatient(SystemClock):
    def sleep(self, seconds: float) -> None:
        pass
