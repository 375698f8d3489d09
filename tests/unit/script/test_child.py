"""How the command is started and ended."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.errors import BadInput, PeerLost
from headway.script import child
from headway.script.child import Child
from headway.script.ending import GRACE_SECONDS
from support.fake_fork_server import ToldClock
from support.waiting import wait_for

SAVES = """
import pathlib, signal, sys, time
def save(*_):
    time.sleep(0.5)
    for _ in range(3):
        print("saving", flush=True)
    pathlib.Path("saved").touch()
    sys.exit()
signal.signal(signal.SIGTERM, save)
pathlib.Path("runs").touch()
time.sleep(1000)
"""
STAYS = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("runs").touch()
time.sleep(1000)
"""


def started(folder: Path, script: str, *command: str, clock: SystemClock | None = None) -> Child:
    """One that has installed its handlers."""
    (folder / "train.py").write_text(script)
    found = Child(command, folder, os.environ, clock or SystemClock())
    wait_for("the script", (folder / "runs").exists)
    return found


def ended(it: Child) -> int:
    wait_for("its end", lambda: it.poll() is not None)
    code = it.poll()
    assert code is not None
    return code


@pytest.mark.parametrize(
    "line", ["python3 train.py | tee log", "(python3 train.py) 2>&1 | cat >log"]
)
def test_a_script_that_prints_into_a_pipe_while_it_saves_is_not_cut_short(
    tmp_path: Path, line: str
) -> None:
    it = started(tmp_path, SAVES, "bash", "-o", "pipefail", "-ec", line)
    it.end(GRACE_SECONDS)
    ended(it)
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "log").read_text() == "saving\n" * 3


def test_a_script_that_reads_a_pipe_and_saves_is_asked_to(tmp_path: Path) -> None:
    it = started(tmp_path, SAVES, "bash", "-c", "sleep 1000 | python3 train.py; true")
    it.end(GRACE_SECONDS)
    ended(it)
    assert (tmp_path / "saved").exists()


def test_what_reads_a_pipe_and_does_not_end_with_it_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "INPUT_SECONDS", 0.1)
    line = "sleep 1000 | (touch runs; exec sleep 1001)"
    it = started(tmp_path, "", "bash", "-c", line)
    wait_for("both", lambda: [one.name for one in _below(it)] == ["sleep"] * 2)
    below = [one.pid for one in _below(it)]
    it.end(GRACE_SECONDS)
    ended(it)
    wait_for("their end", lambda: not any(_is_there(pid) for pid in below))


def test_how_it_took_the_request_to_end_is_told(tmp_path: Path) -> None:
    it = started(tmp_path, SAVES, "python", "train.py")
    assert it.how_it_ended(0) == "", "by itself"
    it.end(GRACE_SECONDS)
    assert it.how_it_ended(ended(it)) == "exited with 0 after SIGTERM"


def test_one_that_ends_by_the_signal_has_saved_nothing_and_it_is_told(tmp_path: Path) -> None:
    it = started(tmp_path, "open('runs', 'w')\nimport time; time.sleep(1000)", "python", "train.py")
    it.end(GRACE_SECONDS)
    assert it.how_it_ended(ended(it)) == "was ended by SIGTERM after SIGTERM was sent"


@pytest.mark.parametrize("command", [("python", "train.py"), ("sh", "-c", "python3 train.py; :")])
def test_that_it_was_killed_after_the_grace_period_is_told(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    clock = ToldClock()
    it = started(tmp_path, STAYS, *command, clock=clock)
    left = [one.pid for one in _below(it)]
    it.end(GRACE_SECONDS)
    assert it.poll() is None
    clock.sleep(GRACE_SECONDS + 1)
    said = it.how_it_ended(ended(it))
    assert said == "did not end within 110 s after SIGTERM: killed"
    for pid in left:  # as the fork server does
        if _is_there(pid):
            os.kill(pid, 9)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file"), BadInput),
        (PermissionError(errno.EACCES, "Permission denied"), BadInput),
        (OSError(errno.ENOEXEC, "Exec format error"), BadInput),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), PeerLost),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), PeerLost),
        (OSError(errno.ETXTBSY, "Text file busy"), PeerLost),
        (OSError(errno.EIO, "Input/output error"), PeerLost),
        (subprocess.SubprocessError("Exception occurred in preexec_fn."), PeerLost),
    ],
)
def test_a_machine_that_cannot_start_it_now_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "Popen", fail)
    with pytest.raises((BadInput, PeerLost), match="python cannot be started: ") as raised:
        Child(["python", "train.py"], tmp_path, os.environ, SystemClock())
    assert type(raised.value) is kind


def _below(it: Child) -> list[child.ProcessStat]:
    """The children of a shell."""
    return [one for one in it.processes() if one.parent == it.process.pid]


def _is_there(pid: int) -> bool:
    found = child.group_members(os.getpgrp())
    return any(one.pid == pid for one in found)
