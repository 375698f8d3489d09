"""A run file with `command`: how it is written, and which keys do not go with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import SpecError
from headway.spec.load import load_run
from headway.spec.run_file import RunFile
from headway.spec.run_identity import is_operation
from headway.spec.script_keys import EXCLUDED, as_list, written


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(text: str, *overrides: str) -> RunFile:
    Path("run.yaml").write_text(f"version: 1\n{text}")
    return load_run(None, list(overrides)).run


def refused(text: str, *overrides: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        loaded(text, *overrides)
    return caught.value


def test_arguments_are_text_as_they_are_written() -> None:
    run = loaded(
        "command: [python, train.py, --lr, 3e-4, --id, 007, --p, 0.10, yes, true, ~, -1]\n"
    )
    assert run.command is not None
    assert run.command[3:] == ["3e-4", "--id", "007", "--p", "0.10", "yes", "true", "~", "-1"]
    again = loaded("command: [python, a.py]\n", "command=[python, b.py, --steps, 1_000]")
    assert again.command == ["python", "b.py", "--steps", "1_000"]


def test_the_script_is_in_the_folder_of_its_run_file_unless_it_says_otherwise() -> None:
    run = loaded("command: [python, train.py]\n")
    assert run.code is not None
    assert run.code.path == "."
    assert loaded("model: {type: gpt2}\n").code is None
    other = loaded("command: [python, train.py]\ncode: {path: src}\n")
    assert other.code is not None
    assert other.code.path == "src"


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("python train.py --lr 1e-3", "command: [python, train.py, --lr, 1e-3]"),
        ("[python train.py --lr 1e-3]", "command: [python, train.py, --lr, 1e-3]"),
        ("train.sh", "command: [train.sh]"),
        ("'python train.py --name \"a b\"'", 'command: [python, train.py, --name, "a b"]'),
        ("python train.py --name it's", 'command: [python, train.py, --name, "it\'s"]'),
    ],
)
def test_a_line_of_a_shell_is_refused_with_the_list(command: str, hint: str) -> None:
    error = refused(f"command: {command}\n")
    assert error.where == "run.yaml:2:1"
    assert "must be a list of arguments" in error.problem
    assert error.hint == hint
    assert loaded(f"{hint}\n").command, "and the hint can be pasted"


def test_a_hint_reads_back_as_the_same_command() -> None:
    command = [
        "bash",
        "-c",
        'echo "$X" && python a.py',
        "--x=[1, 2]",
        "a:b",
        "it: x",
        "#",
        "{",
        "é",
    ]
    assert loaded(f"{written(command)}\n").command == command
    assert as_list("python 'a b") == 'command: [python, "\'a", b]'


def test_keys_of_a_model_are_refused_all_at_once_each_with_its_line_and_why() -> None:
    error = refused(
        "command: [python, train.py]\nmodel: {type: gpt2}\nseed: 3\noptimizer: {typo: 1}\n"
        "checkpoint: {every: 5 steps}\n",
        "train_for=3 steps",
    )
    found = {one.where: one.problem for one in (error, *error.others)}
    assert list(found) == [
        "run.yaml:3:1",
        "--set train_for",
        "run.yaml:5:1",
        "run.yaml:4:1",
        "run.yaml:6:1",
    ]
    assert "model does not apply to a run with `command`" in found["run.yaml:3:1"]
    assert "$HEADWAY_OUTPUT" in found["run.yaml:6:1"]


def test_a_preset_is_refused_once_where_it_is_extended() -> None:
    error = refused("extends: tiny\ncommand: [python, train.py]\nbatch: {global: 3}\n")
    assert error.where == "run.yaml:2:1"
    assert "model, " in error.problem
    assert "batch" not in error.problem.partition(",")[2].partition("which")[0]
    assert [one.where for one in error.others] == ["run.yaml:4:1"]


def test_a_file_that_is_extended_may_have_the_rest() -> None:
    Path("base.yaml").write_text("version: 1\nresources: {nodes: 2..4}\nbudget: {hours: 3}\n")
    run = loaded("extends: base.yaml\ncommand: [python, train.py]\n")
    assert (run.resources.nodes.maximum, run.budget.hours) == (4, 3)


def test_no_key_that_is_left_can_change_what_a_run_is() -> None:
    left = [key for key in RunFile.model_fields if key not in EXCLUDED and not is_operation(key)]
    assert left == ["threads"]
