"""The examples do what their READMEs say, as a user types it; only shorter."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import headway

pytestmark = [
    pytest.mark.local,
    pytest.mark.timeout(300),
    pytest.mark.long("half a minute each; their run files are checked by unit tests"),
]

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = ("--set", "train_for=12 steps", "--set", "evaluation.every=6 steps")


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy") / "examples"
    ignored = shutil.ignore_patterns("runs", "prepared", "teacher", "base")
    shutil.copytree(EXAMPLES, folder, ignore=ignored)
    return folder


@pytest.fixture(scope="module")
def teacher(examples: Path) -> Path:
    """The distillation's teacher, exported: a base model for the others, too."""
    folder = examples / "distill"
    run = headway("run", "teacher.yaml", *SHORT, folder=folder)
    assert hinted(run.stderr) == [
        'headway generate teacher --prompt "Once"',
        "headway export teacher",
        "headway report teacher",
    ]
    headway("export", "teacher", "--into", "teacher", folder=folder)
    return folder / "teacher"


def hinted(said: str) -> list[str]:
    return [line.removeprefix("hint: ") for line in said.splitlines() if line.startswith("hint: ")]


def test_own_code(examples: Path) -> None:
    folder = examples / "own-code"
    assert "mine:loss returned" in headway("check", "--code", folder=folder).stdout
    run = headway("run", *SHORT, folder=folder)
    generate = 'headway generate own-code --prompt "Once"'
    assert hinted(run.stderr) == [generate, "headway report own-code"], "no export"
    status = json.loads(headway("status", "--json", folder=folder).stdout)
    assert (status["state"], status["step"]) == ("finished", 12)
    assert "held-out" in status["evaluations"]
    assert headway("generate", "--prompt", "Once", folder=folder).stdout.startswith("Once")


def test_distill(teacher: Path) -> None:
    folder = teacher.parent
    headway("run", *SHORT, folder=folder)
    status = json.loads(headway("status", "--json", folder=folder).stdout)
    assert (status["name"], status["state"]) == ("student", "finished")


def test_chat(examples: Path, teacher: Path) -> None:
    """Conversations in, and transformers holds one with the exported model, by its template."""
    folder = examples / "chat"
    shutil.copytree(teacher, folder / "base")
    headway("run", *SHORT, "--set", "data.sequence_length=64", folder=folder)
    (prepared,) = (folder / "prepared").glob("train-*")
    sample = headway("data", "sample", str(prepared), folder=folder).stdout
    assert "[-<|user|>\n" in sample
    headway("export", "chat", "--into", "chat", folder=folder)
    made = json.loads((folder / "chat" / "generation_config.json").read_text())
    assert made["eos_token_id"] == 0, "generation stops at the end of an answer"
    ask = [sys.executable, "ask.py", "What does a cow say?"]
    asked = subprocess.run(ask, cwd=folder, capture_output=True, text=True, timeout=120)
    assert asked.returncode == 0, asked.stderr
    assert "<|" not in asked.stdout
