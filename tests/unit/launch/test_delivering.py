"""What a run needs gets to the storage once, whole, whatever happens on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import NotFound
from headway.launch.delivering import Files, deliver, fetch, is_there
from headway.state.store import Store

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
    """Its connection breaks with the second file."""

    sent = 0

    def send(self, path: Path, name: str) -> None:
        self.sent += 1
        if self.sent == 2:
            raise OSError("connection lost")
        super().send(path, name)


def test_it_arrives_and_comes_back(storage: Store, files: Files, tmp_path: Path) -> None:
    shown: list[tuple[int, int]] = []
    assert not is_there(storage, NAME)
    deliver(storage, NAME, files, lambda sent, total: shown.append((sent, total)))
    assert is_there(storage, NAME)
    assert shown[-1] == (1002, 1002)
    fetch(storage, NAME, tmp_path / "pod" / "sets")
    for name, path in files.items():
        assert (tmp_path / "pod" / "sets" / name).read_bytes() == path.read_bytes()


def test_cut_off_it_is_not_there_and_goes_on(files: Files, tmp_path: Path) -> None:
    dying = Dying(tmp_path / "there")
    with pytest.raises(OSError, match="connection lost"):
        deliver(dying, NAME, files, lambda *_: None)
    assert not is_there(dying, NAME)
    with pytest.raises(NotFound, match="is not there"):
        fetch(dying, NAME, tmp_path / "pod")
    deliver(dying, NAME, files, lambda *_: None)
    assert is_there(dying, NAME)
    assert dying.sent == 4, "what had arrived is not sent again"


def test_a_file_of_another_size_is_sent_again(storage: Store, files: Files) -> None:
    storage.write(f"{NAME}/shards/000.bin", b"half")
    deliver(storage, NAME, files, lambda *_: None)
    assert storage.size(f"{NAME}/shards/000.bin") == 1000


def test_what_was_fetched_is_fetched_once(storage: Store, files: Files, tmp_path: Path) -> None:
    deliver(storage, NAME, files, lambda *_: None)
    fetch(storage, NAME, tmp_path / "pod")
    storage.remove("sets")
    fetch(storage, NAME, tmp_path / "pod")
