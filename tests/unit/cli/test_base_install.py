"""Every command in a real base install: a wheel built from the sdist, and requirements/base.txt, so
no torch."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from headway.clock import SystemClock
from headway.spec.load import preset_names
from headway.state.run_directory import RunDirectory
from support.fake_kube import fake_kube
from support.mistakes import MISTAKES, make
from tools.released_wheel import IMAGES, write_released

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
UV = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
INSTALL = "hint: pip install 'headway[train]'"

# Many commands in one process: an interpreter for each would take most of the time.
DRIVER = """\
import contextlib, io, json, sys
from headway.cli.main import main
said = []
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    said.append({"code": code, "out": out.getvalue(), "err": err.getvalue()})
print(json.dumps(said))
"""
Commands = Callable[[Sequence[Sequence[str]]], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build(ROOT, "sdist", folder := tmp_path_factory.mktemp("sdist"))
    (made,) = folder.glob("*.tar.gz")
    return made


@pytest.fixture(scope="session")
def wheel(sdist: Path) -> Path:
    unpack(sdist, sdist.parent)
    build(sdist.with_name(sdist.name.removesuffix(".tar.gz")), "wheel", sdist.parent)
    (made,) = sdist.parent.glob("*.whl")
    return made


def unpack(archive: Path, into: Path) -> None:
    """By tar: Python's own asks for a filter that 3.11.3 does not have."""
    subprocess.run(["tar", "-xf", str(archive), "-C", str(into)], check=True)


def build(tree: Path, kind: str, into: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)]
    subprocess.run(command, cwd=tree, check=True)


@pytest.fixture(scope="session")
def base_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    venv = tmp_path_factory.mktemp("base") / "venv"
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, str(venv)], check=True)
    python, pins = venv / "bin" / "python", ROOT / "requirements" / "base.txt"
    sync = [UV, "pip", "sync", "-q", "--require-hashes", "--python", str(python), str(pins)]
    subprocess.run(sync, check=True)
    install = [UV, "pip", "install", "-q", "--no-deps", "--python", str(python), str(wheel)]
    subprocess.run(install, check=True)
    return python


@pytest.fixture
def headway(base_python: Path, tmp_path: Path) -> Commands:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}

    def commands(wanted: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        done = subprocess.run(
            [str(base_python), "-c", DRIVER, json.dumps(wanted)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        said: list[dict[str, Any]] = json.loads(done.stdout)
        return said

    return commands


def test_the_sdist_has_what_is_installed_and_little_else(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {path.partition("/")[2] for path in archive.getnames()}
    beside = {name for name in names if not name.startswith("src/headway/")}
    files = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO", ".gitignore"}
    assert beside == files


def test_a_released_wheel_names_the_core_image_and_differs_in_nothing_else(
    wheel: Path, tmp_path: Path
) -> None:
    image = f"registry.example/headway-core@sha256:{'0' * 64}"
    before, after = contents(wheel), contents(write_released(wheel, image, tmp_path))
    assert before.keys() == after.keys()
    record, named = sorted(name for name in after if before[name] != after[name])
    images = json.loads(before[IMAGES])
    assert images["core"] == {"image": ""}, "only a release knows it"
    images["core"]["image"] = image
    assert (named, json.loads(after[named])) == (IMAGES, images)
    lines = [content[record].decode().splitlines() for content in (before, after)]
    assert [line.partition(",")[0] for line in set(lines[1]) - set(lines[0])] == [named]
    for line in lines[1]:
        name, digest, num_bytes = line.split(",")
        if name != record:
            found = base64.urlsafe_b64encode(hashlib.sha256(after[name]).digest()).decode()
            assert (digest, num_bytes) == (f"sha256={found.rstrip('=')}", str(len(after[name])))
    with pytest.raises(SystemExit, match="is not NAME@sha256:DIGEST"):
        write_released(wheel, "registry.example/headway-core:0.1.0", tmp_path)


def contents(wheel: Path) -> dict[str, bytes]:
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_has_every_file_and_the_command(base_python: Path) -> None:
    code = "import headway; print(headway.__path__[0])"
    there = Path(subprocess.check_output([base_python, "-c", code], text=True).strip())
    assert there.is_relative_to(base_python.parents[1])

    def files(folder: Path) -> set[str]:
        found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
        return {str(path.relative_to(folder)) for path in found}

    assert files(there) == files(ROOT / "src" / "headway")
    assert "py.typed" in files(there)
    shown = subprocess.check_output([base_python.with_name("headway"), "--help"], text=True)
    assert "Usage" in shown


def test_the_line_of_the_readme_installs_a_wheel(base_python: Path, wheel: Path) -> None:
    """But for its extra: torch is gigabytes, from an index that not every machine reaches."""
    line = re.search(r"^uv (pip install .*)'\.\[train\]'", README.read_text(), re.MULTILINE)
    assert line is not None
    options = ("--python", str(base_python), "--dry-run", str(wheel))
    subprocess.run([UV, *line[1].split(), *options], check=True)


def test_there_is_no_torch(base_python: Path) -> None:
    code = (
        "from importlib.util import find_spec\n"
        "print([m for m in ('torch', 'numpy', 'transformers', 'tokenizers') if find_spec(m)])"
    )
    assert subprocess.check_output([base_python, "-c", code], text=True) == "[]\n"


SPREAD = ["--set", "batch.micro=1"]
"""Eight devices have no work in the micro-batches of the smallest presets."""


def test_init_and_check_of_every_preset(headway: Commands, tmp_path: Path) -> None:
    names = preset_names()
    (tmp_path / "config" / "headway").mkdir(parents=True)
    (tmp_path / "config" / "headway" / "targets.yaml").write_text(
        f"largest: {{image: 'here/headway@sha256:{'0' * 64}', storage: 's3://bucket/runs', "
        "resources: {accelerators: 'B200:8'}, pod: {resources: {cpu: 64, memory: 1Ti}}}\n"
    )
    for name, said in zip(names, headway([["init", name, name] for name in names]), strict=True):
        assert said["code"] == 0, (name, said)
        (tmp_path / name / "data").mkdir(exist_ok=True)
        (tmp_path / name / "data" / "a.jsonl").write_text('{"text": "Once."}\n')
    checks = headway(
        [["check", f"{name}/run.yaml", "--json", "--on", "largest", *SPREAD] for name in names]
    )
    for name, said in zip(names, checks, strict=True):
        assert said["code"] == 0, (name, said)
        assert json.loads(said["out"])["batch"]


def test_check_finds_mistakes(headway: Commands, tmp_path: Path) -> None:
    mistakes = {f"m{at}": one for at, one in enumerate(MISTAKES) if one.found_by == "check"}
    for folder, mistake in mistakes.items():
        (tmp_path / folder).mkdir()
        make(mistake, tmp_path / folder)
    checks = headway([["check", name, *one.options] for name, one in mistakes.items()])
    for mistake, said in zip(mistakes.values(), checks, strict=True):
        assert said["code"] in (2, 3), (mistake.name, said)
        assert mistake.says in said["err"]


def test_commands_that_only_read(headway: Commands, tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "runs" / "it", SystemClock())
    directory.log(0, 0).parent.mkdir()
    directory.log(0, 0).write_text("hello\n")
    expected = {
        ("--version",): "0.1.0\n",
        ("--help",): "Usage",
        ("init", "--list"): "\ngpt2-small ",
        ("status", "it"): "stopped",
        ("status", "it", "--json"): '"state": "stopped"',
        ("list",): "it ",
        ("list", "--json"): '"name": "it"',
        ("logs", "it"): "hello\n",
        ("events", "it"): "",
        ("plan", "llama2-70b", "--on", "B200:8", "--nodes", "16"): "takes  ",
        ("plan", "gpt2-small", "--compare", "H100:8,A100:8", "--nodes", "1,2"): "fastest",
    }
    for (arguments, words), said in zip(expected.items(), headway(list(expected)), strict=True):
        assert (said["code"], said["err"]) == (0, ""), arguments
        assert words in said["out"], arguments


def test_commands_that_train_say_what_to_install(headway: Commands, tmp_path: Path) -> None:
    headway([["init", "tiny", "my-run"]])
    RunDirectory.create(tmp_path / "runs" / "it", SystemClock())
    before = sorted(tmp_path.rglob("*"))
    wanted = (
        ("run", "my-run"),
        ("check", "my-run", "--code"),
        ("generate", "it"),
        ("export", "it"),
        ("data", "prepare", "my-run/data/train.txt", "--into", "set", "--train-vocab", "300"),
        ("data", "tokenizer", "my-run/data/train.txt", "--vocab", "300", "--into", "tokenizer"),
        ("data", "show", "set"),
        ("data", "sample", "set"),
        ("data", "verify", "set"),
    )
    for arguments, said in zip(wanted, headway(wanted), strict=True):
        assert said["code"] == 2, (arguments, said)
        assert "needs the training extra" in said["err"], arguments
        assert said["err"].splitlines()[-1] == INSTALL, arguments
    assert sorted(tmp_path.rglob("*")) == before, "and nothing is left behind"


SCRIPT = """\
version: 1
name: it
command: [python, train.py]
resources: {accelerators: cpu:1}
"""


def test_a_laptop_needs_nothing_that_only_linux_has(base_python: Path, tmp_path: Path) -> None:
    """Commands that plan, launch and watch, in a simulation of macOS, and for Headway's own imports
    of Windows."""
    unpack(ROOT / "tests" / "data" / "made_before.tar.xz", tmp_path)
    environment = {
        **os.environ,
        "PATH": f"{base_python.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "tests" / "support" / "elsewhere"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
    }

    def said(*command: str, exit_code: int = 0) -> str:
        ended = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert ended.returncode == exit_code, ended.stderr
        return ended.stdout + ended.stderr

    said("bash", str(ROOT / "tools" / "laptop.sh"))
    with fake_kube(tmp_path) as kube:
        assert INSTALL in said("headway", "run", "--on", "lab", exit_code=2), "it reads the set"
        (tmp_path / "run.yaml").write_text(SCRIPT)
        (tmp_path / "train.py").touch()
        kube.job_status = {"conditions": [{"type": "Complete", "status": "True"}]}
        assert "run it has finished on lab" in said("headway", "run", "--on", "lab")
        assert "finished" in said("headway", "status", "it", "--on", "lab")
    assert said("python", "-c", "import os; print(hasattr(os, 'sched_getaffinity'))") == "False\n"
