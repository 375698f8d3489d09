"""The program that brings Headway into an image without it: what it brings, and what it refuses."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from headway import __version__
from headway.errors import Exit
from headway.kube import bootstrap
from headway.kube.bootstrap import (
    CannotUnpack,
    Image,
    instead,
    problems,
    required,
    satisfies,
    to_bring,
    unpack,
    untested,
    wheel_of,
)
from headway.kube.wheels import copy_wheels, own_files, shipped, wheel_plan
from support.in_process import Headway

PROGRAM = Path(bootstrap.__file__)
STOCK = {"torch": "2.14.0", "numpy": "2.3.0"}
"""PyTorch's own image."""
IN_IMAGE = {**STOCK, "transformers": "5.9.0", "tokenizers": "0.22.1"}
IN_IMAGE |= {"safetensors": "0.6.2", "pyyaml": "6.0.2", "fsspec": "2025.9.0"}
PYTHON, GLIBC = (3, 12), "glibc 2.35"


def image(
    packages: Mapping[str, str] = IN_IMAGE,
    python: tuple[int, int] = PYTHON,
    machine: str = "x86_64",
    libc: str = GLIBC,
) -> Image:
    return Image(python, machine, libc, packages.get)


def plan(spec: str = "") -> dict[str, Any]:
    return required(wheel_plan(), spec)


@pytest.mark.parametrize(
    ("version", "asked", "is_so"),
    [
        ("2.14.0", ">=2.14", True),
        ("2.14.0a0+nv26.8", ">=2.14", True),
        ("2.9.1", ">=2.14", False),
        ("2.50.4", "==2.50.4", True),
        ("2.50.5", "==2.50.4", False),
        ("3", "<3.0.0,>=2", False),
        ("0.1.7", "~=0.1", True),
        ("1.0", "~=0.1", False),
        ("0.3", "~=0.1.2", False),
        ("2.2.0", "!=2.2.0,<3", False),
        ("4.1.9", "==4.1.*", True),
        ("4.2", "!=4.1.*", True),
        ("1", "", True),
    ],
)
def test_versions(version: str, asked: str, is_so: bool) -> None:
    assert satisfies(version, asked) == is_so


def test_what_the_image_has_is_kept() -> None:
    brought = to_bring(plan(), image())
    assert {"headway", "pydantic", "pydantic-core", "msgspec", "typer"} <= set(brought)
    assert not {"pyyaml", "fsspec", "s3fs"} & set(brought)


def test_what_is_too_old_is_brought() -> None:
    assert "fsspec" in to_bring(plan(), image({**IN_IMAGE, "fsspec": "2024.1.0"}))


def test_pydantic_is_brought_with_its_core_or_neither_is() -> None:
    """Each works with one version of the other only."""
    has_both = {**IN_IMAGE, "pydantic": "2.12.0", "pydantic-core": "2.41.1"}
    assert not {"pydantic", "pydantic-core"} & set(to_bring(plan(), image(has_both)))
    too_old = {**IN_IMAGE, "pydantic": "2.9.0", "pydantic-core": "2.23.2"}
    assert {"pydantic", "pydantic-core"} <= set(to_bring(plan(), image(too_old)))


def test_what_an_extra_needs_is_brought_though_the_package_is_there() -> None:
    """lightkube asks for httpx2[http2]; an image may have httpx2 alone, and newer."""
    there = {**IN_IMAGE, "httpx2": "2.99", "httpcore2": "2.99", "anyio": "4.99", "idna": "3.99"}
    brought = to_bring(plan(), image(there))
    assert "h2" in brought
    assert not {"httpx2", "httpcore2"} & set(brought)


def test_a_bucket_brings_what_reaches_it_and_the_same_fsspec() -> None:
    brought = to_bring(plan("s3://team/runs"), image())
    assert {"s3fs", "fsspec", "aiobotocore", "botocore"} <= set(brought)


def test_gcsfs_does_not_ship() -> None:
    assert problems(plan("gs://team/runs"), image()) == [
        "it has no gcsfs, and gcsfs>=2025.3 is needed"
    ]


def test_of_an_image_with_this_headway_nothing_is_brought() -> None:
    assert to_bring(plan(), image({**IN_IMAGE, "headway": __version__})) == []
    assert to_bring(plan(), image({**IN_IMAGE, "headway": "0.0.1"}))[0] == "headway"


def test_an_image_with_torch_alone_gets_transformers() -> None:
    brought = to_bring(plan(), image(STOCK))
    assert {"headway", "transformers", "tokenizers", "safetensors"} <= {*brought}
    assert not {"torch", "numpy"} & {*brought}


@pytest.mark.parametrize("minor", [11, 12, 13, 14])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_release_ships_for_every_python_and_machine_it_says(minor: int, machine: str) -> None:
    for libc in ("glibc 2.28", "glibc 2.41"):  # torch needs the first
        there = image(STOCK, (3, minor), machine, libc)
        assert problems(plan("s3://team"), there) == []


def test_all_that_is_lacking_is_said_at_once() -> None:
    poor = {**IN_IMAGE, "torch": "2.9.1"}
    del poor["numpy"]
    assert problems(plan(), image(poor, (3, 15), "riscv64", "")) == [
        "it has Python 3.15, and 3.11 to 3.14 is needed",
        "it is for riscv64, and x86_64 or aarch64 is needed",
        "its C library is not glibc (musl?)",
        "it has torch 2.9.1, and torch>=2.14 is needed",
        "it has no numpy, and numpy>=2 is needed",
    ]
    assert "it has Python 3.10, " in problems(plan(), image(python=(3, 10)))[0]


def test_a_torch_newer_than_those_that_are_tested_is_warned_of() -> None:
    newer = image({**IN_IMAGE, "torch": "2.99.0a0+nv30.1"})
    assert problems(plan(), newer) == []
    (words,) = untested(plan(), newer)
    assert words.startswith("torch 2.99.0a0+nv30.1 is newer than those that Headway is tested with")
    assert untested(plan(), image()) == []


def test_glibc_may_be_too_old_for_a_wheel() -> None:
    (first, *_) = problems(plan(), image(libc="glibc 2.5"))
    assert first == "the coordinator's image has no wheel of msgspec for glibc 2.5"


def test_it_starts_on_python_3_7_with_the_standard_library_alone() -> None:
    tree = ast.parse(PROGRAM.read_text(), feature_version=(3, 7))
    imported = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        str(node.module).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert imported <= sys.stdlib_module_names


# Copying and unpacking


def put_wheel(folder: Path, name: str, content: bytes | None = None) -> dict[str, Any]:
    """Into a pod's folder, as an init container does. Returns what the list says of it."""
    made = io.BytesIO()
    with ZipFile(made, "w") as archive:
        archive.writestr(f"{name}/__init__.py", f"NAME = {name!r}\n")
        archive.writestr(f"{name}-1.data/scripts/{name}", "#!python\n")
    content = made.getvalue() if content is None else content
    sha256 = hashlib.sha256(content).hexdigest()
    (folder / sha256).write_bytes(content)
    facts = {"name": name, "version": "1", "tag": "py3-none-any", "size": len(content)}
    return {**facts, "sha256": sha256}


def test_wheels_are_unpacked_without_commands(tmp_path: Path) -> None:
    unpack([put_wheel(tmp_path, "one"), put_wheel(tmp_path, "two")], str(tmp_path))
    unpacked = tmp_path / "unpacked"
    assert sorted(path.name for path in unpacked.iterdir()) == ["one", "two"]
    assert (unpacked / "one" / "__init__.py").read_text() == "NAME = 'one'\n"


@pytest.mark.parametrize("fault", ["no zip", "no room", "gone"])
def test_what_cannot_be_unpacked_here_may_be_elsewhere(tmp_path: Path, fault: str) -> None:
    wheel = put_wheel(tmp_path, "small", bytes(100) if fault == "no zip" else None)
    if fault == "no room":
        (tmp_path / "unpacked").write_text("a file where a folder should be")
    if fault == "gone":
        (tmp_path / wheel["sha256"]).unlink()
    with pytest.raises(CannotUnpack, match="small cannot be unpacked in "):
        unpack([wheel], str(tmp_path))


def test_what_is_listed_and_whole_is_copied(tmp_path: Path) -> None:
    there, into = tmp_path / "there", tmp_path / "into"
    there.mkdir()
    into.mkdir()
    (there / "typer-0-py3-none-any.whl").write_bytes(b"cut off")
    assert copy_wheels(there, into) == 1
    copied = json.loads((into / "wheels.json").read_text())
    assert [wheel["name"] for wheel in copied["wheels"]] == ["headway"]
    own = copied["wheels"][0]["sha256"]
    assert {path.name for path in into.iterdir()} == {"bootstrap.py", "wheels.json", own}
    assert (into / own).read_bytes() == own_files()
    (first, *_) = problems(copied, image())
    assert first == f"the coordinator's image has no wheel of httpcore2 for {GLIBC}"


@pytest.mark.parametrize(
    ("variables", "code", "words"),
    [
        ({}, Exit.PEER_LOST, "error: [Errno 2] No such file or directory"),
        (
            {"HEADWAY_VERSION": "9.9.9"},
            Exit.BAD_INPUT,
            f"this image has Headway {__version__}, and",
        ),
    ],
)
def test_only_another_version_would_fail_in_the_next_pod_too(
    headway: Headway,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    code: Exit,
    words: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    said = headway("wheels", str(tmp_path / "gone"))
    assert (said.exit_code, words in said.err) == (code, True)


# The program


PYTHON_ALONE: tuple[str, ...] = (sys._base_executable, "-S")  # type: ignore[attr-defined]
"""Without this machine's packages."""
ALONE: dict[str, Any] = {"version": "9.9.9", "image": {}, "requires": {}}
"""Headway's own files are brought, and nothing else."""


def pods_folder(tmp_path: Path, **content: Any) -> Path:
    """With the program, Headway's own files, and this as the list."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (tmp_path / "none").mkdir()
    copy_wheels(tmp_path / "none", folder)
    (folder / "wheels.json").write_text(json.dumps({**plan(), **content}))
    return folder


def run_program(folder: Path, *python: str) -> tuple[int, str]:
    spec = folder.parent / "spec.json"
    spec.write_text("{}")
    ended = subprocess.run(
        [*(python or PYTHON_ALONE), folder / "bootstrap.py", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder.parent,
        env={"HEADWAY_SPEC": str(spec), "PYTHONPATH": "/elsewhere"},
    )
    assert not ended.stderr
    return ended.returncode, ended.stdout


def test_an_image_without_torch_ends_with_2_and_one_message(tmp_path: Path) -> None:
    code, said = run_program(pods_folder(tmp_path))
    assert code == 2
    assert said.splitlines()[0] == (
        f"error: Headway {__version__} cannot run in this image: it has no torch, and torch>=2.14 "
        "is needed; it has no numpy, and numpy>=2 is needed"
    )


def test_a_machine_with_a_fault_ends_with_7_and_is_said(tmp_path: Path) -> None:
    folder = pods_folder(tmp_path, **ALONE)
    (folder / plan()["wheels"][0]["sha256"]).write_bytes(bytes(1000))
    code, said = run_program(folder)
    assert code == 7
    assert said.startswith("error: headway cannot be unpacked in "), said
    (folder / "wheels.json").write_text("{")
    assert run_program(folder)[0] == 7


def test_what_comes_instead_of_the_images_own_is_said() -> None:
    has = {**IN_IMAGE, "pydantic": "2.9.0", "pydantic-core": "2.23.2"}
    listed, packages = plan(), plan()["packages"]
    wheels = [wheel_of(name, listed, image(has)) for name in to_bring(listed, image(has))]
    assert instead([one for one in wheels if one is not None], image(has)) == [
        f"pydantic 2.9.0 -> {packages['pydantic']['version']}",
        f"pydantic-core 2.23.2 -> {packages['pydantic-core']['version']}",
    ]


def test_headway_is_brought_and_starts(tmp_path: Path) -> None:
    """The packages it needs are those of this machine. Files in the image's working folder are no
    packages: such as /app/typer.py of the user's."""
    (tmp_path / "typer.py").write_text("raise SystemExit('of the working folder')\n")
    folder = pods_folder(tmp_path, **ALONE)
    code, said = run_program(folder, sys.executable)
    brought, replaced, version = said.splitlines()
    assert (code, version) == (0, __version__)
    assert replaced == f"instead of the image's: headway {__version__} -> {__version__}"
    assert brought.startswith(f"brought 1 packages, {len(own_files()) / 1e6:.1f} MB")
    ran = subprocess.run(
        [sys.executable, "-c", "import headway; print(headway.__file__)"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(folder / "unpacked")},
    )
    assert ran.stdout.strip() == str(folder / "unpacked" / "headway" / "__init__.py")


def test_an_image_with_this_headway_keeps_it(tmp_path: Path) -> None:
    folder = pods_folder(tmp_path)
    code, said = run_program(folder, sys.executable)
    assert (code, said.splitlines()) == (0, [f"the image has Headway {__version__}", __version__])
    assert not (folder / "unpacked").exists()


def test_the_archive_of_headway_is_the_same_each_time() -> None:
    first = own_files()
    own_files.cache_clear()
    assert own_files() == first
    names = ZipFile(io.BytesIO(first)).namelist()
    assert {"headway/__init__.py", "headway/kube/wheels.json", "headway/py.typed"} <= set(names)
    assert not [name for name in names if "__pycache__" in name]


def test_the_list_fits_pyproject_and_the_requirements_it_was_made_of() -> None:
    """`make lock` writes both."""
    pinned = {
        line.split(" ")[0]
        for line in (PROGRAM.parents[3] / "requirements" / "wheels.txt").read_text().splitlines()
        if line[:1].isalpha()
    }
    packages = shipped()["packages"]
    assert {f"{name}=={facts['version']}" for name, facts in packages.items()} == pinned
