"""All files of a code folder travel, but what is no code; and too much of it is refused by name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from headway.cli.code_changes import tell_code_change
from headway.clock import SystemClock
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, resolve
from headway.state.code_folder import (
    MOST_BYTES,
    MOST_FILES,
    CodeFolder,
    CodeFolderRefused,
    code_folder,
)
from headway.state.run_directory import RunDirectory

RUN = """\
version: 1
name: it
model: {type: gpt2}
data:
  train: {sources: [data/*.txt], tokenizer: ./words}
  validation: {held: {sources: [held.txt]}}
batch: {global: 8}
"""
Found = Callable[[], CodeFolder]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.yaml").write_text(f"{RUN}code: {{path: .}}\n")
    return tmp_path


@pytest.fixture
def found(folder: Path) -> Found:
    def of_run() -> CodeFolder:
        loaded = load_run(str(folder / "run.yaml"), None)
        code = code_folder(loaded.run, loaded.folder)
        assert code is not None
        return code

    return of_run


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def names(*wanted: str) -> list[str]:
    return sorted([*wanted, "run.yaml"])


def test_all_kinds_of_files_travel(folder: Path, found: Found) -> None:
    kept = ("train.py", "conf/a.yaml", "conf/deep/b.json", "run.sh", "words.txt", "empty")
    write(folder, dict.fromkeys(kept, "x"))
    assert sorted(found().files) == names(*kept)


def test_what_is_no_code_stays(folder: Path, found: Found) -> None:
    write(folder, {"train.py": "x"})
    before = found().listing
    noise = (
        ".env",
        ".git/config",
        "pkg/.hidden/x.py",
        "pkg/__pycache__/train.cpython-311.pyc",
        "runs/it/spec.json",
        "prepared/train-0/manifest.json",
        "data/a.txt",
        "held.txt",
        "words/tokenizer.json",
        "venv/pyvenv.cfg",
        "venv/lib/torch.py",
    )
    write(folder, dict.fromkeys(noise, "noise"))
    assert found().listing == before


def test_code_that_is_trained_on_still_travels(folder: Path, found: Found) -> None:
    write(folder, {"train.py": "x", "pkg/a.py": "x"})
    text = (folder / "run.yaml").read_text().replace("data/*.txt", "'**/*.py'")
    (folder / "run.yaml").write_text(text)
    assert sorted(found().files) == names("train.py", "pkg/a.py")


def test_headwayignore_has_the_rules_of_gitignore(folder: Path, found: Found) -> None:
    write(
        folder,
        {
            ".headwayignore": "# outputs\n*.ckpt\n/out\nlogs/\n!keep.ckpt\n",
            "train.py": "x",
            "a.ckpt": "x",
            "keep.ckpt": "x",
            "out/x": "x",
            "pkg/out/x": "x",
            "pkg/logs/x": "x",
            "logs.py": "x",
        },
    )
    assert sorted(found().files) == names("train.py", "keep.ckpt", "pkg/out/x", "logs.py")


def test_a_rule_that_is_none_is_named_with_its_line(folder: Path, found: Found) -> None:
    write(folder, {".headwayignore": "*.ckpt\n!\n"})
    with pytest.raises(CodeFolderRefused, match=r"\.headwayignore:2: "):
        found()


def test_two_gigabytes_are_refused_unread_with_what_they_are(folder: Path, found: Found) -> None:
    sizes = {"images/train/a.bin": 2 * 10**9, "images/b.bin": 10**6, "weights.pt": 5 * 10**6}
    for name, size in sizes.items():
        write(folder, {name: ""})
        os.truncate(folder / name, size)  # it takes no space on the disk
    with pytest.raises(CodeFolderRefused) as caught:
        found()
    assert "1.9 GiB in 4 files" in caught.value.message
    assert "largest: images/train (1.9 GiB), weights.pt (4.8 MiB)" in caught.value.message
    assert caught.value.hint is not None
    assert f"echo '/images/train' >> {folder}/.headwayignore" in caught.value.hint
    write(folder, {".headwayignore": "/images/train\n"})
    assert sorted(found().files) == names("images/b.bin", "weights.pt")


def test_the_limits_themselves_are_allowed(folder: Path, found: Found) -> None:
    rest = MOST_BYTES - (folder / "run.yaml").stat().st_size
    write(folder, {"large": ""})
    os.truncate(folder / "large", rest)
    found()
    os.truncate(folder / "large", rest + 1)
    with pytest.raises(CodeFolderRefused, match=r"100\.0 MiB in 2 files"):
        found()


def test_too_many_files_are_refused(folder: Path, found: Found) -> None:
    (folder / "frames").mkdir()
    for number in range(MOST_FILES):
        (folder / "frames" / str(number)).touch()
    with pytest.raises(CodeFolderRefused, match=r"in 10,001 files.*largest: frames .10,000 files."):
        found()


def test_links_within_the_folder_are_what_they_point_to(folder: Path, found: Found) -> None:
    write(folder, {"pkg/a.py": "x = 1"})
    (folder / "same.py").symlink_to("pkg/a.py")
    (folder / "again").symlink_to("pkg")
    assert sorted(found().files) == names("pkg/a.py", "same.py", "again/a.py")
    assert {one.sha256 for one in found().listing.files if one.name != "run.yaml"} == {
        one.sha256 for one in found().listing.files if one.name == "pkg/a.py"
    }


@pytest.mark.parametrize(
    "target",
    [".env", ".git/config", ".git", "venv/lib/x.py", "venv", "conf/secret.yaml", "data/a.txt"],
)
def test_a_link_to_what_stays_stays(folder: Path, found: Found, target: str) -> None:
    kept = {"train.py": "x", "conf/a.yaml": "x", ".headwayignore": "/conf/secret.yaml\n"}
    noise = (".env", ".git/config", "venv/pyvenv.cfg", "venv/lib/x.py", "conf/secret.yaml")
    write(folder, {**kept, **dict.fromkeys((*noise, "data/a.txt"), "secret")})
    (folder / "prod.env").symlink_to(target)
    assert sorted(found().files) == names("train.py", "conf/a.yaml")
    (folder / "again").symlink_to("conf")
    assert sorted(found().files) == names("train.py", "conf/a.yaml", "again/a.yaml")


@pytest.mark.parametrize("storage", [".", "[old] runs!", "#1", "a*b", "!x", "deep/below"])
def test_run_directories_stay_whatever_the_storage_is_called(
    folder: Path, storage: str, found: Found
) -> None:
    (folder / "run.yaml").write_text(f"{RUN}code: {{path: .}}\nstorage: '{storage}'\n")
    write(folder, {"train.py": "x", "sub/it/a.py": "x", f"{storage}/it/spec.json": "noise"})
    assert sorted(found().files) == names("train.py", "sub/it/a.py")


def test_a_link_that_leaves_the_folder_is_refused(
    folder: Path, found: Found, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (folder / "set").symlink_to(elsewhere)
    with pytest.raises(CodeFolderRefused, match=f"set is a link to {elsewhere}, outside"):
        found()
    write(folder, {".headwayignore": "/set\n"})
    assert sorted(found().files) == names()


@pytest.mark.parametrize(("target", "says"), [(".", "that it is in"), ("nowhere", "No such file")])
def test_a_link_that_leads_nowhere_is_refused(
    folder: Path, found: Found, target: str, says: str
) -> None:
    (folder / "link").symlink_to(target)
    with pytest.raises(CodeFolderRefused, match=says):
        found()


def test_a_command_stays_a_command(folder: Path, found: Found) -> None:
    write(folder, {"run.sh": "#!/bin/sh\n"})
    before = found().listing.digest
    (folder / "run.sh").chmod(0o755)
    assert [one.name for one in found().listing.files if one.executable] == ["run.sh"]
    assert found().listing.digest != before


def test_a_name_that_is_no_text_is_refused(folder: Path, found: Found) -> None:
    Path(os.fsdecode(bytes(folder) + b"/\xff.py")).touch()
    with pytest.raises(CodeFolderRefused, match="not valid UTF-8"):
        found()


# --- what has changed


@pytest.fixture
def started(folder: Path, found: Found, capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    """A start of the run; what it says."""

    def start() -> str:
        code = found()
        location = str(folder / "runs" / "it")
        tell_code_change(location, code)
        loaded = load_run(str(folder / "run.yaml"), None)
        machine = Hardware(cores=1, cuda_devices=0)
        resolved = resolve(
            loaded, machine, nodes=1, parameters=1, train_set="t", validation_sets={}
        ).model_copy(update={"code_digest": code.listing.digest})
        RunDirectory.create(location, SystemClock()).write_spec(resolved)
        return capsys.readouterr().err

    return start


def test_a_resume_says_that_the_code_changed(folder: Path, started: Callable[[], str]) -> None:
    write(folder, {"train.py": "x = 1", "conf/a.yaml": "a: 1"})
    assert started() == ""
    assert started() == ""
    write(folder, {"train.py": "x = 2"})
    said = started()
    assert re.fullmatch(r"code changed since the last start: (2-\w{10}) -> (?!\1)2-\w{10}\n", said)
    assert started() == ""
