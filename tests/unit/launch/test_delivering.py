"""What a run needs gets to the storage once, whole, whatever happens on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import NotFound, RunFailed
from headway.launch.delivering import Files, deliver, fetch, is_there
from headway.state.store import Store
from support.clock import Patient

NAME = "sets/d1ge57"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = {"manifest.json": b"{}", "shards/000.bin": b"x" * 1000, "empty": b""}
    for name, content in made.items():
        path = tmp_path / "here" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return {name: tmp_path / "here" / name for name in made}


@pytest.fixture
def storage(tmp_path: Path) -> Store:
    return Store(tmp_path / "there")


class Dying(Store):
    """Its connection breaks with the second file, and so many times."""

    sent = 0
    breaks = 10**6

    def send(self, path: Path, name: str) -> None:
        self.sent += 1
        if self.sent > 1 and self.breaks:
            self.breaks -= 1
            raise OSError("connection lost")
        super().send(path, name)


def delivered(
    storage: Store, files: Files, clock: Patient | None = None, said: list[str] | None = None
) -> list[tuple[int, int]]:
    """What was shown meanwhile."""
    shown: list[tuple[int, int]] = []
    words = [] if said is None else said
    deliver(storage, NAME, files, lambda *of: shown.append(of), words.append, clock or Patient())
    return shown


def test_it_arrives_and_comes_back(storage: Store, files: Files, tmp_path: Path) -> None:
    assert not is_there(storage, NAME)
    shown = delivered(storage, files)
    assert is_there(storage, NAME)
    assert shown[-1] == (1002, 1002)
    fetch(storage, NAME, tmp_path / "pod" / "sets")
    for name, path in files.items():
        assert (tmp_path / "pod" / "sets" / name).read_bytes() == path.read_bytes()


def test_cut_off_it_is_not_there_and_goes_on(files: Files, tmp_path: Path) -> None:
    dying = Dying(tmp_path / "there")
    with pytest.raises(RunFailed) as caught:
        delivered(dying, files)
    assert str(caught.value) == (
        f"{dying.location(NAME)}/manifest.json cannot be written, tried 4 times: connection lost\n"
        "hint: the same command goes on with what is missing"
    )
    assert not is_there(dying, NAME)
    with pytest.raises(NotFound, match="is not there"):
        fetch(dying, NAME, tmp_path / "pod")
    dying.sent, dying.breaks = 1, 0
    delivered(dying, files)
    assert is_there(dying, NAME)
    assert dying.sent == 3, "what had arrived is not sent again"


def test_a_connection_that_comes_back_is_no_end(files: Files, tmp_path: Path) -> None:
    dying, clock, said = Dying(tmp_path / "there"), Patient(), list[str]()
    dying.breaks = 2
    delivered(dying, files, clock, said)
    assert is_there(dying, NAME)
    assert clock.slept == [2, 10]
    assert said == [
        f"{dying.location(NAME)}/manifest.json: connection lost; again in {seconds} s"
        for seconds in (2, 10)
    ]


def test_what_is_forbidden_is_not_tried_again(files: Files, tmp_path: Path) -> None:
    class Closed(Store):
        def send(self, path: Path, name: str) -> None:
            raise PermissionError("AccessDenied")

    clock = Patient()
    with pytest.raises(RunFailed, match="cannot be written: AccessDenied"):
        delivered(Closed(tmp_path / "there"), files, clock)
    assert clock.slept == []


def test_a_file_of_another_size_is_sent_again(storage: Store, files: Files) -> None:
    storage.write(f"{NAME}/shards/000.bin", b"half")
    delivered(storage, files)
    assert storage.size(f"{NAME}/shards/000.bin") == 1000


def test_what_was_fetched_is_fetched_once(storage: Store, files: Files, tmp_path: Path) -> None:
    delivered(storage, files)
    fetch(storage, NAME, tmp_path / "pod")
    storage.remove("sets")
    fetch(storage, NAME, tmp_path / "pod")
