"""Every command in a real base install: the wheel and requirements/base.txt, so no torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headway.clock import SystemClock
from headway.spec.load import preset_names
from headway.state.run_directory import RunDirectory
from support.mistakes import MISTAKES, make

ROOT = Path(__file__).parents[3]
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
def base_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    venv = tmp_path_factory.mktemp("base") / "venv"
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(venv)], check=True)
    python, pins = venv / "bin" / "python", ROOT / "requirements" / "base.txt"
    sync = [uv, "pip", "sync", "-q", "--require-hashes", "--python", str(python), str(pins)]
    subprocess.run(sync, check=True)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(venv)]
    subprocess.run(build, cwd=ROOT, check=True)
    (wheel,) = venv.glob("*.whl")
    install = [uv, "pip", "install", "-q", "--no-deps", "--python", str(python), str(wheel)]
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
        ("data", "join", "part"),
        ("data", "mix", "a", "b", "--weights", "1,2", "--into", "mixed"),
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
