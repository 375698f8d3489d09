"""What `check` and `run` say of a command before anything starts, and what they do not refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import SpecError
from headway.preflight.preflight import Preflight, preflight
from headway.spec.load import load_run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")
    Path("pkg").mkdir()
    Path("pkg/fit.py").write_text("")
    Path("pkg/__main__.py").write_text("")
    Path("run.sh").write_text("#!/bin/sh\n")
    Path("go.sh").write_text("#!/bin/sh\n")
    Path("go.sh").chmod(0o755)
    return tmp_path


def found(command: str, more: str = "", is_here: bool = True) -> Preflight:
    Path("run.yaml").write_text(f"version: 1\ncommand: {command}\n{more}")
    return preflight(load_run(), is_here)


def refused(command: str, more: str = "", is_here: bool = True) -> SpecError:
    (problem,) = found(command, more, is_here).problems
    return problem


@pytest.mark.parametrize(
    "command",
    [
        "[python, train.py, --lr, 3e-4, --out, $HEADWAY_OUTPUT/model]",
        "[python3, -u, -X, dev, -Werror, train.py]",
        "[python, ./train.py, '${HEADWAY_SCRATCH}']",
        "[python, -m, pkg.fit]",
        "[python, -m, pkg]",
        "[python, -um, json.tool]",
        "[python, -c, 'import os']",
        "[./go.sh]",
        "[sh, run.sh]",
        "[bash, -c, 'cd $HOME && python train.py']",
        "[env, A=1, python, train.py]",
        "[python, $HEADWAY_OUTPUT/made.py]",
        "[python, train.py, --pattern, '^a$', --cost, '$5']",
    ],
)
def test_what_can_be_started_is_accepted_here_and_on_a_target(command: str) -> None:
    assert found(command).problems == []
    assert found(command, is_here=False).problems == []


@pytest.mark.parametrize(
    ("command", "says", "hint"),
    [
        ("[python, trian.py]", "there is no file trian.py in ", "did you mean train.py?"),
        ("[python, ../train.py]", "outside of the code folder", "code: {path: FOLDER}"),
        ("[python]", "python is given no script", "command: [python, train.py]"),
        ("[python, -u]", "python is given no script", "command: [python, train.py, -u]"),
        ("[python, -m, pkg.lost]", "there is no pkg/lost.py", "code: {path: FOLDER}"),
        ("[./run.sh]", "run.sh is not executable", "chmod +x "),
        ("[sh, lost]", "there is no file lost in", "code: {path: FOLDER}"),
        ("[python, train.py, '${HEADWAY_RANK}']", "no variable $HEADWAY_RANK", "$HEADWAY_OUTPUT"),
        ("[python, train.py, $HOME/x]", "$HOME is not replaced", 'os.environ["HOME"]'),
        (
            "[python, train.py, '>', log]",
            "there is no shell",
            'command: [bash, -o, pipefail, -ec, "python train.py > log"]',
        ),
        (
            "[python, train.py, '|', tee, log]",
            "there is no shell",
            'command: [bash, -o, pipefail, -ec, "python train.py | tee log"]',
        ),
        ("[python, train.py, '>', log, '&']", "there is no shell", "leave out &"),
        ("[A=1, python, train.py]", "A=1 is not a program", "[env, A=1, python, train.py]"),
    ],
)
@pytest.mark.parametrize("is_here", [True, False])
def test_what_cannot_be_started_is_refused_with_what_to_write(
    command: str, says: str, hint: str, is_here: bool
) -> None:
    error = refused(command, is_here=is_here)
    assert says in error.problem
    assert hint in (error.hint or "")
    assert error.where.startswith("run.yaml:2:")


@pytest.mark.parametrize(
    ("launcher", "instead"),
    [
        ("torchrun, --nproc_per_node=2, train.py, --lr, 1", "[python, train.py, --lr, 1]"),
        ("torchrun, --nnodes, 2, -m, pkg.fit, --lr, 1", "[python, -m, pkg.fit, --lr, 1]"),
        ("accelerate, launch, --config_file, a.yaml, train.py", "[python, train.py]"),
        (
            "deepspeed, --num_gpus, 2, train.py, --deepspeed, d.json",
            "train.py, --deepspeed, d.json",
        ),
        ("mpirun, -np, 4, python, -u, train.py", "[python, -u, train.py]"),
        ("python, -m, torch.distributed.run, train.py", "[python, train.py]"),
        ("python3, -m, torch.distributed.launch, --nproc_per_node, 2, train.py", "[python, train."),
        ("python, -m, accelerate.commands.launch, train.py", "[python, train.py]"),
        ("/opt/bin/torchrun, --help", "name the script itself"),
        ("env, A=1, torchrun, train.py", "[env, A=1, python, train.py]"),
    ],
)
def test_launchers_are_refused_naming_what_to_write_instead(launcher: str, instead: str) -> None:
    error = refused(f"[{launcher}]")
    assert "starts processes" in error.problem
    assert instead in (error.hint or "")
    assert "resources" in (error.hint or "")


def test_a_mistake_of_syntax_is_found_here_where_the_python_is_known() -> None:
    Path("train.py").write_text("x = 1\ndef f(:\n")
    assert "train.py:2: invalid syntax" in refused("[python, train.py]").problem
    assert found("[python, train.py]", is_here=False).problems == []


def test_a_script_that_workers_would_not_have_is_refused() -> None:
    Path(".headwayignore").write_text("tr*.py\n")
    error = refused("[python, ./train.py]")
    assert "train.py is not copied to workers" in error.problem
    assert ".headwayignore" in (error.hint or "")


def test_a_path_from_the_run_file_is_corrected_to_one_from_the_code_folder(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src/fit.py").write_text("")
    error = refused("[python, src/fit.py]", "code: {path: src}\n")
    assert error.hint == "paths start at code.path: write fit.py"


def test_programs_are_looked_for_in_the_path_here_and_in_the_image_there() -> None:
    error = refused("[no-such-program, x]")
    assert "no program 'no-such-program' in PATH" in error.problem
    assert "[./go.sh]" in (refused("[go.sh]").hint or "")
    there = found("[no-such-program, x]", is_here=False)
    assert there.problems == []
    assert there.unchecked == ["command: no-such-program is looked for where the run is"]
    assert found("[python, /opt/train.py]", is_here=False).unchecked != []
    assert "there is no file /no/train.py" in refused("[python, /no/train.py]").problem


def test_all_that_is_wrong_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_TOKEN", raising=False)
    more = "secrets: [MY_TOKEN]\n"
    problems = found("[python, lost.py, $USER, $HEADWAY_NONE]", more).problems
    places = ["run.yaml:2:28", "run.yaml:2:35", "run.yaml:2:19", "run.yaml:3:1"]
    assert [one.where for one in problems] == places
    assert "MY_TOKEN not set in the environment" in problems[-1].problem


def test_a_code_folder_that_is_not_there_is_the_only_problem() -> None:
    assert "no folder" in refused("[python, train.py]", "code: {path: nowhere}\n").problem
