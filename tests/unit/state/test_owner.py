"""A second start is refused with words while the first shows that it lives; deleting owns first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from headway.clock import SystemClock
from headway.errors import BadInput, RunFailed, StillRunning
from headway.state import heartbeat
from headway.state.chain import Chain, KeptCheckpoint
from headway.state.heartbeat import (
    FRESH_SECONDS,
    NAME,
    Owner,
    SignsOfLife,
    alive_elsewhere,
    owner,
    require_alone,
)
from headway.state.removal import remove_run
from headway.state.run_directory import RunDirectory
from support.chains import TIME, begun, recorded
from support.fake_s3 import FakeS3, fake_s3


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "it", SystemClock())


def shown(directory: RunDirectory, **facts: Any) -> None:
    """What the launcher of another machine has shown a moment ago."""
    one = Owner("other", "node7", "its boot", 4711, SystemClock().now())
    content = json.dumps({**asdict(one), **facts}).encode()
    directory.store.write(NAME, content)


def test_a_start_beside_one_that_lives_elsewhere_is_refused(directory: RunDirectory) -> None:
    shown(directory)
    with pytest.raises(StillRunning) as caught:
        require_alone(directory, SystemClock(), "repeat the command with --take-over")
    assert caught.value.message.startswith(
        "run it is being trained on node7 (process 4711), which showed that 0 s ago"
    )
    assert caught.value.hint == (
        "stop it there; if that machine is gone, repeat the command with --take-over"
    )


@pytest.mark.parametrize(
    "facts",
    [
        {"time": 1e9},
        {"has_ended": True},
        {"launch": "mine"},
        {"boot": heartbeat._boot(), "pid": 2**22 + 1},
    ],
    ids=["long ago", "ended", "the same launch", "a dead process of this machine"],
)
def test_what_is_taken_over_from_at_once(directory: RunDirectory, facts: dict[str, Any]) -> None:
    shown(directory, **facts)
    assert alive_elsewhere(directory, SystemClock(), "mine") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"launch": "a"}'])
def test_a_sign_of_life_that_cannot_be_read_refuses_nothing(
    directory: RunDirectory, content: bytes
) -> None:
    directory.store.write(NAME, content)
    require_alone(directory, SystemClock(), "")


def test_a_launcher_shows_that_it_lives_and_that_it_has_ended(directory: RunDirectory) -> None:
    with SignsOfLife(directory, "mine", SystemClock()):
        found = owner(directory)
        assert found is not None
        assert (found.launch, found.pid, found.is_dead) == ("mine", os.getpid(), False)
        assert alive_elsewhere(directory, SystemClock(), "another") == found
    found = owner(directory)
    assert found is not None
    assert found.is_dead


def test_one_that_was_taken_over_hides_nobody(directory: RunDirectory) -> None:
    with SignsOfLife(directory, "mine", SystemClock()):
        shown(directory)
    found = owner(directory)
    assert found is not None
    assert (found.launch, found.has_ended) == ("other", False)


def test_a_killed_launcher_of_this_machine_is_dead(directory: RunDirectory) -> None:
    script = (
        "import sys; sys.path.insert(0, 'src')\n"
        "from headway.clock import SystemClock\n"
        "from headway.state.heartbeat import SignsOfLife\n"
        "from headway.state.run_directory import RunDirectory\n"
        f"SignsOfLife(RunDirectory({directory.location!r}), 'it', SystemClock()).__enter__()\n"
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    found = owner(directory)
    assert found is not None
    assert found.is_dead
    assert SystemClock().now() - found.time < FRESH_SECONDS


# --- deleting


def test_a_run_that_is_being_deleted_cannot_be_started(directory: RunDirectory) -> None:
    """Half of it may be gone."""
    recorded(begun(directory, 1, 0), KeptCheckpoint(step=5, generation=1, digest="d"))
    Chain(directory, "whoever deletes").start(TIME, "delete")
    with pytest.raises(StillRunning, match="run it is being deleted by") as caught:
        Chain(directory, "b").start(TIME)
    assert caught.value.hint == "to finish that: headway delete it"
    remove_run(directory, SystemClock())
    assert not Path(directory.location).exists()


def test_who_trains_a_run_that_was_deleted_is_told(directory: RunDirectory) -> None:
    chain = begun(directory, 1, 0)
    Chain(directory, "whoever deletes").start(TIME, "delete")
    with pytest.raises(RunFailed, match="run it was deleted by"):
        recorded(chain, KeptCheckpoint(step=5, generation=1, digest="d"))


@pytest.mark.parametrize("remote", [False, True])
def test_all_of_it_goes_the_chain_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with fake_s3() as s3:
        place = "s3://bucket/it" if remote else tmp_path / "it"
        directory = RunDirectory.create(place, SystemClock())
        begun(directory, 1, 0)
        directory.store.write("checkpoints/step-00000005.g000001/rank-0.safetensors", b"x")
        directory.local.mkdir(parents=True, exist_ok=True)
        removed: list[str] = []
        remove = type(directory.store).remove

        def noted(self: Any, name: str) -> None:
            removed.append(name)
            remove(self, name)

        monkeypatch.setattr(type(directory.store), "remove", noted)
        remove_run(directory, SystemClock())
        assert removed[-4:] == ["run.json", *(f"chain/0000/{n:06d}.json" for n in (1, 2, 3))]
        assert directory.store.names("") == []
        assert not directory.local.exists()
        s3.store.clear()


# --- what it rests on


def test_a_store_that_overwrites_what_was_to_be_created_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two starts would have the same number there, and each would take itself for the only one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pipe_file = FakeS3.pipe_file

    def ignores(self: Any, path: str, value: bytes, **_: Any) -> Any:
        return pipe_file(self, path, value)

    with fake_s3():
        monkeypatch.setattr(FakeS3, "pipe_file", ignores)
        with pytest.raises(BadInput, match=r"s3://bucket/it cannot be used: .*If-None-Match"):
            RunDirectory.create("s3://bucket/it", SystemClock())
        assert not RunDirectory.exists("s3://bucket/it")
