"""The program that brings Headway into an image without it: what it brings, and what it refuses."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from zipfile import ZipFile

import pytest

from headway import __version__
from headway.kube import bootstrap
from headway.kube.bootstrap import (
    Broken,
    Image,
    Lacking,
    fetch,
    instead,
    problems,
    satisfies,
    to_bring,
    wheel_of,
)
from headway.kube.wheels import bootstrap_files, own_files, shipped
from support.clock import Patient

PROGRAM = Path(bootstrap.__file__)
STOCK = {"torch": "2.14.0", "numpy": "2.3.0"}
"""PyTorch's own image."""
IN_IMAGE = {**STOCK, "transformers": "5.2.0", "tokenizers": "0.22.1"}
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
    found: dict[str, Any] = json.loads(bootstrap_files(spec)["wheels.json"])
    return found


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


def test_glibc_may_be_too_old_for_a_wheel() -> None:
    (first, *_) = problems(plan(), image(libc="glibc 2.5"))
    assert first == "no wheel of msgspec ships for glibc 2.5"


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


# Fetching


def a_wheel(name: str = "small") -> tuple[dict[str, Any], bytes]:
    made = io.BytesIO()
    with ZipFile(made, "w") as archive:
        archive.writestr(f"{name}/__init__.py", f"NAME = {name!r}\n")
        archive.writestr(f"{name}-1.data/scripts/{name}", "#!python\n")
    content = made.getvalue()
    sha256 = hashlib.sha256(content).hexdigest()
    facts = {"name": name, "version": "1", "tag": "py3-none-any", "size": len(content)}
    return {**facts, "sha256": sha256}, content


Answer = tuple[int, bytes, int]
"""Status, content, and the length that is claimed."""


@contextmanager
def served(answer: Callable[[str, int], Answer]) -> Iterator[str]:
    """The address of a server; `answer` gets the path and the number of the request."""
    count = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            nonlocal count
            count += 1
            status, content, length = answer(self.path, count)
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(content)
            self.close_connection = len(content) != length

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_files_are_unpacked_without_commands(tmp_path: Path) -> None:
    wheels = [a_wheel("one"), a_wheel("two")]
    contents = {f"/{facts['sha256']}": content for facts, content in wheels}
    with served(lambda path, _: (200, contents[path], len(contents[path]))) as address:
        fetch([facts for facts, _ in wheels], address, str(tmp_path), Patient())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_a_transfer_that_is_cut_or_refused_is_tried_again(tmp_path: Path) -> None:
    facts, content = a_wheel()
    answers: dict[int, Answer] = {
        1: (503, b"", 0),
        2: (200, content[:50], len(content)),
        3: (200, content[:50], 50),
    }
    whole = (200, content, len(content))
    with served(lambda _, number: answers.get(number, whole)) as address:
        fetch([facts], address, str(tmp_path), Patient())
    assert (tmp_path / "small" / "__init__.py").read_text() == "NAME = 'small'\n"


def test_another_content_is_never_unpacked(tmp_path: Path) -> None:
    facts, content = a_wheel()
    other = bytes(len(content))
    with (
        served(lambda *_: (200, other, len(other))) as address,
        pytest.raises(Broken, match=f"small from {address}: content other than"),
    ):
        fetch([facts], address, str(tmp_path), Patient())
    assert not (tmp_path / "small").exists()


def test_nothing_is_unpacked_before_all_have_come_and_the_place_is_free(tmp_path: Path) -> None:
    """The server has few places, and gives a connection a minute."""
    wheels = [a_wheel("one"), a_wheel("two")]
    contents = {f"/{facts['sha256']}": content for facts, content in wheels}
    there: list[list[str]] = []

    def answer(path: str, _: int) -> Answer:
        there.append([one.name for one in tmp_path.iterdir() if one.is_dir()])
        return 200, contents[path], len(contents[path])

    with served(answer) as address:
        fetch([facts for facts, _ in wheels], address, str(tmp_path), Patient())
    assert there == [[], []]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_each_file_that_came_gives_the_next_one_as_long(tmp_path: Path) -> None:
    wheels = [a_wheel(name) for name in ("one", "two", "three")]
    contents = {f"/{facts['sha256']}": content for facts, content in wheels}
    asked: dict[str, int] = {}

    def answer(path: str, _: int) -> Answer:
        asked[path] = asked.get(path, 0) + 1
        if asked[path] < 70:  # five minutes
            return 503, b"", 0
        return 200, contents[path], len(contents[path])

    clock = Patient()
    with served(answer) as address:
        fetch([facts for facts, _ in wheels], address, str(tmp_path), clock)
    assert clock.passed > 700


@pytest.mark.parametrize("fault", ["no zip", "no room"])
def test_what_cannot_be_unpacked_here_may_be_elsewhere(tmp_path: Path, fault: str) -> None:
    facts, content = a_wheel()
    if fault == "no zip":
        content = bytes(len(content))
        facts["sha256"] = hashlib.sha256(content).hexdigest()
    else:
        (tmp_path / "small").write_text("a file where a folder should be")
    with (
        served(lambda *_: (200, content, len(content))) as address,
        pytest.raises(Broken, match="small cannot be unpacked in "),
    ):
        fetch([facts], address, str(tmp_path), Patient())


def test_a_coordinator_with_other_files_is_named(tmp_path: Path) -> None:
    facts, _ = a_wheel("headway")
    with (
        served(lambda *_: (404, b"", 0)) as address,
        pytest.raises(Lacking, match="other files of headway 1 than the client has"),
    ):
        fetch([facts], address, str(tmp_path), Patient())


def test_nobody_is_waited_for_forever(tmp_path: Path) -> None:
    facts, _ = a_wheel()
    clock = Patient()
    with (
        served(lambda *_: (503, b"", 0)) as address,
        pytest.raises(Broken, match=f"waited 600 s for small from {address}: HTTP 503"),
    ):
        fetch([facts], address, str(tmp_path), clock)
    assert 500 < clock.passed < 700


# The program


def run_program(folder: Path, content: Mapping[str, Any], address: str) -> tuple[int, str]:
    (folder / "wheels.json").write_text(json.dumps(content))
    (folder / "packages").mkdir()
    python: str = sys._base_executable  # type: ignore[attr-defined]
    # Isolated from this machine's packages: an image with Python alone.
    ended = subprocess.run(
        [python, "-S", PROGRAM, "fetch", folder / "wheels.json", folder / "packages", address],
        capture_output=True,
        text=True,
        timeout=60,
        env={},
    )
    assert not ended.stderr
    return ended.returncode, ended.stdout


def test_an_image_without_torch_ends_with_2_and_one_message(tmp_path: Path) -> None:
    code, said = run_program(tmp_path, plan(), "127.0.0.1:1")
    assert code == 2
    assert said.splitlines()[0] == (
        f"error: Headway {__version__} cannot run in this image: it has no torch, and torch>=2.14 "
        "is needed; it has no numpy, and numpy>=2 is needed"
    )


def test_a_machine_with_a_fault_ends_with_7_and_is_said(tmp_path: Path) -> None:
    own, content = plan()["wheels"][0], bytes(1000)
    own = {**own, "size": 1000, "sha256": hashlib.sha256(content).hexdigest()}
    alone = {**plan(), "image": {}, "requires": {}, "wheels": [own]}
    with served(lambda *_: (200, content, len(content))) as address:
        code, said = run_program(tmp_path, alone, address)
    assert code == 7
    assert said.startswith("error: headway cannot be unpacked in "), said


def test_what_comes_instead_of_the_images_own_is_said() -> None:
    has = {**IN_IMAGE, "pydantic": "2.9.0", "pydantic-core": "2.23.2"}
    listed, packages = plan(), plan()["packages"]
    wheels = [wheel_of(name, listed, image(has)) for name in to_bring(listed, image(has))]
    assert instead([one for one in wheels if one is not None], image(has)) == [
        f"pydantic 2.9.0 -> {packages['pydantic']['version']}",
        f"pydantic-core 2.23.2 -> {packages['pydantic-core']['version']}",
    ]


def test_files_in_the_images_working_folder_are_no_packages(tmp_path: Path) -> None:
    """Such as /app/typer.py of the user's."""
    (tmp_path / "typer.py").write_text("raise SystemExit('of the working folder')\n")
    started = subprocess.run(
        [sys.executable, PROGRAM, "start", tmp_path / "packages", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env={"PYTHONPATH": str(PROGRAM.parents[2])},
    )
    assert (started.stdout.strip(), started.stderr) == (__version__, "")


def test_headway_itself_is_brought_and_starts(tmp_path: Path) -> None:
    """Headway's files alone: the packages it needs are those of this machine."""
    own, content = plan()["wheels"][0], own_files()
    alone = {**plan(), "image": {}, "requires": {}, "wheels": [own]}
    with served(lambda *_: (200, content, len(content))) as address:
        code, said = run_program(tmp_path, alone, address)
    assert code == 0, said
    assert said.startswith(f"brought 1 packages, {len(content) / 1e6:.1f} MB")
    folder = str(tmp_path / "packages")
    started = subprocess.run(
        [sys.executable, PROGRAM, "start", folder, "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": "/elsewhere"},
    )
    assert started.stdout.strip() == __version__
    where = "import headway, sys; print(headway.__file__, '/elsewhere' in sys.path)"
    ran = subprocess.run(
        [sys.executable, "-c", where],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": f"{folder}:/elsewhere"},
    )
    assert ran.stdout.split() == [f"{folder}/headway/__init__.py", "True"]


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
