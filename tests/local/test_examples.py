"""The examples do what their READMEs say, as a user types it; only shorter."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.commands import headway

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = ("--set", "train_for=12 steps", "--set", "evaluation.every=6 steps")


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("runs", "prepared", "teacher")
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=ignored)
    return tmp_path / "examples"


def hinted(said: str) -> list[str]:
    return [line.removeprefix("hint: ") for line in said.splitlines() if line.startswith("hint: ")]


def test_own_code(examples: Path) -> None:
    folder = examples / "own-code"
    assert "mine:loss returned" in headway("check", "--code", folder=folder).stdout
    run = headway("run", *SHORT, folder=folder)
    assert hinted(run.stderr) == ['headway generate own-code --prompt "Once"'], "no export"
    status = json.loads(headway("status", "--json", folder=folder).stdout)
    assert (status["state"], status["step"]) == ("finished", 12)
    assert "held-out" in status["evaluations"]
    assert headway("generate", "--prompt", "Once", folder=folder).stdout.startswith("Once")


def test_distill(examples: Path) -> None:
    folder = examples / "distill"
    run = headway("run", "teacher.yaml", *SHORT, folder=folder)
    assert hinted(run.stderr) == [
        'headway generate teacher --prompt "Once"',
        "headway export teacher",
    ]
    headway("export", "teacher", "--into", "teacher", folder=folder)
    headway("run", *SHORT, folder=folder)
    status = json.loads(headway("status", "--json", folder=folder).stdout)
    assert (status["name"], status["state"]) == ("student", "finished")
