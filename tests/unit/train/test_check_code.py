"""headway check --code: a slip in the user's code is shown as theirs, without a frame of ours."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.errors import BadInput, CheckFailed
from headway.spec.load import load_run
from headway.train.check_code import check_code

RUN = """\
version: 1
name: it
model: {type: gpt2}
data: {train: prepared}
batch: {global: 4}
code: {path: code}
objective: {call: "slips:loss"}
"""
DEEP = """\
import torch

def loss(model, batch):
    return inner(model(batch.inputs).logits)

def inner(logits):
    return torch.nn.functional.cross_entropy(logits, "targets")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "code").mkdir()
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before
    sys.modules.pop("slips", None)


def found(folder: Path, code: str) -> str:
    (folder / "code" / "slips.py").write_text(code)
    with pytest.raises(CheckFailed) as caught:
        check_code(load_run(folder).run, folder)
    return str(caught.value)


def test_only_the_users_frames_are_shown(folder: Path) -> None:
    said = found(folder, DEEP)
    file = folder / "code" / "slips.py"
    first, *lines, last = said.splitlines()
    assert first == "your code failed:"
    assert [line for line in lines if line.startswith("  File")] == [
        f'  File "{file}", line 4, in loss',
        f'  File "{file}", line 7, in inner',
    ]
    assert last.startswith("TypeError: cross_entropy_loss()")


def refused(folder: Path, code: str) -> str:
    (folder / "code" / "slips.py").write_text(code)
    with pytest.raises(BadInput) as caught:
        check_code(load_run(folder).run, folder)
    return str(caught.value)


def test_a_module_that_cannot_be_read_is_shown_where_it_is_wrong(folder: Path) -> None:
    said = refused(folder, "def loss(:\n")
    file = folder / "code" / "slips.py"
    assert f"slips:loss: importing slips failed: SyntaxError: invalid syntax: {file}:1" in said
    assert "importlib" not in said


def test_a_module_that_imports_what_is_not_there(folder: Path) -> None:
    said = refused(folder, "import torch\nimport not_there\n")
    file = folder / "code" / "slips.py"
    assert said.splitlines()[:2] == [
        "slips:loss: importing slips failed: ModuleNotFoundError: No module named 'not_there'",
        f"  {file}:2 in <module>: import not_there",
    ]
    assert "install not_there, or name it in code: {path: FOLDER, requirements: FILE}" in said


def test_a_loss_without_a_gradient_is_named(folder: Path) -> None:
    code = "from headway import Loss\n"
    code += "def loss(model, batch):\n    return Loss(batch.inputs.sum().float(), 1)\n"
    (folder / "code" / "slips.py").write_text(code)
    with pytest.raises(BadInput, match="the loss does not depend on the model"):
        check_code(load_run(folder).run, folder)
