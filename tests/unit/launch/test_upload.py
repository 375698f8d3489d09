"""What a run needs gets to the storage once, whole, whatever happens on the way."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier

import pytest

from headway.errors import BadInput, NotFound, RunFailed
from headway.launch.upload import FILES_AT_ONCE, LARGE_BYTES, Files, fetch, is_uploaded, upload
from headway.state.file_listing import listing_of
from headway.state.store import Store
from support.clock import Patient


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
    """Its connection breaks with one of the files, so many times."""

    breaks = 10**6

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.sent: list[str] = []

    def send(self, path: Path, name: str) -> None:
        if name.endswith("manifest.json") and self.breaks:
            self.breaks -= 1
            raise OSError("connection lost")
        super().send(path, name)
        self.sent.append(path.name)


def name_of(files: Files, kind: str = "models") -> str:
    return f"{kind}/{listing_of(files).digest}"


def delivered(
    storage: Store, files: Files, clock: Patient | None = None, said: list[str] | None = None
) -> list[tuple[int, int]]:
    """What was shown meanwhile."""
    shown: list[tuple[int, int]] = []
    words = [] if said is None else said
    name, listing = name_of(files), listing_of(files).content
    show = lambda *of: shown.append(of)  # noqa: E731
    upload(storage, name, files, listing, show, words.append, clock or Patient())
    return shown


@pytest.mark.trap(26)
def test_it_arrives_and_comes_back(storage: Store, files: Files, tmp_path: Path) -> None:
    assert not is_uploaded(storage, name_of(files))
    shown = delivered(storage, files)
    assert is_uploaded(storage, name_of(files))
    assert shown[-1] == (1002, 1002)
    fetch(storage, name_of(files), tmp_path / "pod" / "sets")
    for name, path in files.items():
        assert (tmp_path / "pod" / "sets" / name).read_bytes() == path.read_bytes()


def test_an_upload_that_was_cut_off_is_not_used_and_can_be_resumed(
    files: Files, tmp_path: Path
) -> None:
    dying = Dying(tmp_path / "there")
    with pytest.raises(RunFailed) as caught:
        delivered(dying, files)
    assert str(caught.value) == (
        f"{dying.location(name_of(files))}/manifest.json cannot be written, tried 4 times: "
        "connection lost\n"
        "hint: run the same command again to upload the rest"
    )
    assert not is_uploaded(dying, name_of(files))
    with pytest.raises(NotFound, match="does not exist"):
        fetch(dying, name_of(files), tmp_path / "pod")
    dying.breaks = 0
    delivered(dying, files)
    assert is_uploaded(dying, name_of(files))
    assert len(dying.sent) == len(set(dying.sent)) == 3, "what had arrived is not sent again"


def test_code_that_is_edited_during_its_upload_is_not_used(files: Files, tmp_path: Path) -> None:
    """Its digest would have other content, for every run that has this code."""

    class Edited(Store):
        def send(self, path: Path, name: str) -> None:
            if path.name == "000.bin":
                path.write_bytes(b"y" * 1000)
            super().send(path, name)

    name, listing, said = name_of(files, "code"), listing_of(files).content, list[str]()
    there = Edited(tmp_path / "there")
    with pytest.raises(BadInput, match="was edited during the upload") as caught:
        upload(there, name, files, listing, lambda *_: None, said.append, Patient())
    assert str(files["shards/000.bin"]) in caught.value.message
    assert caught.value.hint == "run the same command again"
    assert not is_uploaded(there, name)
    files["shards/000.bin"].write_bytes(b"x" * 1000)
    upload(Store(tmp_path / "there"), name, files, listing, lambda *_: None, said.append, Patient())
    fetch(there, name, tmp_path / "pod")
    assert (tmp_path / "pod" / "shards" / "000.bin").read_bytes() == b"x" * 1000


def test_an_upload_survives_a_lost_connection(files: Files, tmp_path: Path) -> None:
    dying, clock, said = Dying(tmp_path / "there"), Patient(), list[str]()
    dying.breaks = 2
    delivered(dying, files, clock, said)
    assert is_uploaded(dying, name_of(files))
    assert clock.slept == [2, 10]
    assert said == [
        f"{dying.location(name_of(files))}/manifest.json: connection lost; retrying in {seconds} s"
        for seconds in (2, 10)
    ]


def test_small_files_go_at_the_same_time_and_large_ones_alone(tmp_path: Path) -> None:
    """One that is sent in parts takes the whole network by itself."""
    meeting, under_way = Barrier(FILES_AT_ONCE), list[str]()

    class Meeting(Store):
        def send(self, path: Path, name: str) -> None:
            under_way.append(path.name)
            if path.name.startswith("small"):
                meeting.wait(10)
            else:
                assert under_way == [path.name]
            super().send(path, name)
            under_way.remove(path.name)

    files = {}
    for name in [f"small-{number}" for number in range(2 * FILES_AT_ONCE)] + ["a", "z"]:
        files[name] = tmp_path / name
        with files[name].open("wb") as file:
            file.truncate(10 if name.startswith("small") else LARGE_BYTES)
    delivered(Meeting(tmp_path / "there"), files)


def test_a_forbidden_call_is_not_retried(files: Files, tmp_path: Path) -> None:
    class Closed(Store):
        def send(self, path: Path, name: str) -> None:
            raise PermissionError("AccessDenied")

    clock = Patient()
    with pytest.raises(RunFailed, match="cannot be written: AccessDenied"):
        delivered(Closed(tmp_path / "there"), files, clock)
    assert clock.slept == []


def test_a_file_of_another_size_is_sent_again(storage: Store, files: Files) -> None:
    storage.write(f"{name_of(files)}/shards/000.bin", b"half")
    delivered(storage, files)
    assert storage.size(f"{name_of(files)}/shards/000.bin") == 1000


def test_what_was_fetched_is_fetched_once(storage: Store, files: Files, tmp_path: Path) -> None:
    delivered(storage, files)
    fetch(storage, name_of(files), tmp_path / "pod")
    storage.remove("code")
    fetch(storage, name_of(files), tmp_path / "pod")


EVIL = b"import os; os.system('echo mine')"


@pytest.mark.parametrize(
    ("planted", "content", "is_seen_before"),
    [
        ("/mine.py", EVIL[:11], False),
        ("/mine.py", EVIL, False),
        ("/mine.py", b"", False),
        (".whole", b"[]\n", True),
        (".whole", b"no listing at all", True),
        (".whole", b'[{"name": "../../usercustomize.py", "size": 3, "sha256": ""}]', True),
    ],
    ids=["same size", "longer", "shorter", "empty", "damaged", "outside"],
)
def test_nothing_is_used_of_what_others_have_put_there(
    storage: Store, tmp_path: Path, planted: str, content: bytes, is_seen_before: bool
) -> None:
    """Whoever can write to a bucket must not run code in the pods of others."""
    (tmp_path / "mine.py").write_bytes(b"answer = 42")
    files = {"mine.py": tmp_path / "mine.py"}
    delivered(storage, files)
    name = name_of(files)
    storage.write(f"{name}{planted}", content)
    # Of a changed listing the next launch takes notice by itself.
    assert is_uploaded(storage, name) != is_seen_before
    with pytest.raises(RunFailed) as caught:
        fetch(storage, name, tmp_path / "pod" / "code")
    where = storage.location(name)
    assert str(caught.value) == (
        f"{where}{planted} does not match what was uploaded (SHA-256 differs); none of it was "
        "used\n"
        f"hint: check who can write there, then delete {where} and {where}.whole: headway run --on "
        "uploads them again"
    )
    assert [path for path in (tmp_path / "pod").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("instead", ["nothing", "a folder"])
def test_a_listed_file_that_is_missing_ends_the_run(
    storage: Store, files: Files, tmp_path: Path, instead: str
) -> None:
    """It is missing for every pod: another one has no better storage."""
    delivered(storage, files)
    name = name_of(files)
    storage.remove(f"{name}/shards/000.bin")
    if instead == "a folder":
        storage.write(f"{name}/shards/000.bin/other", b"")
    with pytest.raises(RunFailed) as caught:
        fetch(storage, name, tmp_path / "pod" / "code")
    assert caught.value.message == (
        f"{storage.location(name)}/shards/000.bin does not match what was uploaded (no such file); "
        "none of it was used"
    )
    assert caught.value.hint is not None
    assert [path for path in (tmp_path / "pod").rglob("*") if path.is_file()] == []


def test_a_file_that_is_not_listed_is_not_fetched(storage: Store, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_bytes(b"answer = 42")
    files = {"mine.py": tmp_path / "mine.py"}
    delivered(storage, files)
    storage.write(f"{name_of(files)}/torch.py", EVIL)
    fetch(storage, name_of(files), tmp_path / "pod")
    assert [path.name for path in (tmp_path / "pod").iterdir()] == ["mine.py"]


def test_a_command_is_one_in_the_pod_as_well(storage: Store, files: Files, tmp_path: Path) -> None:
    listing = listing_of(files, {"empty"})
    name = f"code/{listing.digest}"
    upload(storage, name, files, listing.content, lambda *_: None, lambda _: None, Patient())
    fetch(storage, name, tmp_path / "pod")
    found = {each: (tmp_path / "pod" / each).stat().st_mode & 0o111 for each in files}
    assert {each for each, bits in found.items() if bits} == {"empty"}
