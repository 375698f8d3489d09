"""Headway from Python: the same words and figures as the commands, as values and exceptions."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headway as package
from support.in_process import Headway
from support.interrupted_run import ten_interruptions

RUN_FILE = """\
version: 1
name: first
model: {type: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 32, n_positions: 64}}
data: {train: {sources: [text.txt], tokenizer: {train: {vocab: 384}}}, sequence_length: 32}
batch: {global: 8, micro: 4}
train_for: 4 steps
"""


@pytest.fixture(autouse=True)
def run_file(folder: Path) -> None:
    (folder / "run.yaml").write_text(RUN_FILE)
    (folder / "text.txt").write_text("Once upon a time. " * 50)


def test_check_is_that_of_the_command(headway: Headway) -> None:
    checked = package.load("run.yaml").check()
    said = json.loads(headway("check", "--json").out)
    assert said == {**checked.facts, "problems": [], "unchecked": checked.unchecked}
    assert repr(checked).strip() == headway("check").out.strip()
    assert "<th>model</th>" in checked._repr_html_()


def test_overrides_are_values(folder: Path) -> None:
    changed = package.load(
        set={
            "train_for": "10 steps",
            "optimizer.lr": 1e-5,
            "evaluation.prompts": ["Once: \U0001f600", "#"],
            "memory.compile": False,
        }
    )
    assert changed.check().facts["train_for"]["steps"] == 10
    assert changed.check().facts["optimizer"]["lr"] == 1e-5
    assert "Once: \U0001f600" in changed._settings()["evaluation"]["prompts"]
    assert changed.name == "first"


def test_an_error_has_the_words_of_the_terminal(folder: Path, headway: Headway) -> None:
    (folder / "run.yaml").write_text(RUN_FILE.replace("n_layer", "n_layers"))
    with pytest.raises(package.BadInput) as caught:
        package.load().check()
    said = headway("check").err
    assert said.strip() == f"error: {caught.value}"
    assert caught.value._render_traceback_() == [said.strip()]
    with pytest.raises(package.BadInput, match="n_layers"):
        package.load().run()
    with pytest.raises(package.NotFound, match="no run 'gone'"):
        package.open("gone")


@pytest.mark.parametrize("has_pandas", [True, False])
def test_a_run_shows_itself(
    folder: Path, headway: Headway, monkeypatch: pytest.MonkeyPatch, has_pandas: bool
) -> None:
    directory = ten_interruptions(folder).directory
    if not has_pandas:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (run,) = package.runs()
    metrics: Any = run.metrics()
    if has_pandas:
        assert list(metrics["step"]) == list(range(1, 601))
    else:
        assert metrics == directory.steps()
        assert "600 rows, the newest 20 shown" in metrics._repr_html_()
        assert repr(metrics).endswith("600 rows, the newest 20 shown")
    assert run.events() == directory.history()
    assert run.status().state == "finished"
    assert len(run.evaluations()) == 3
    shown = run._repr_html_()
    for line in headway("status", directory.name).out.splitlines():
        assert line[:12].strip() in shown
    assert repr(package.open(directory.name)) == repr(run)
    assert "<td>finished</td><td>600/600</td>" in package.runs()._repr_html_()


def test_looking_at_runs_needs_no_torch(folder: Path) -> None:
    ten_interruptions(folder)
    code = (
        "import sys, headway\n"
        "headway.load().check()\n"
        "[run._repr_html_() for run in headway.runs()]\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
