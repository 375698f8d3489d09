"""`headway init script`, then `headway run`: a script that trains, is edited, and resumes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.commands import headway

pytestmark = [pytest.mark.local, pytest.mark.timeout(400)]


@pytest.mark.long("the gate has scripts in test_script_run.py and test_script_worker.py")
def test_a_script_trains_finishes_and_continues_when_it_is_edited(tmp_path: Path) -> None:
    headway("init", "script", "mine", folder=tmp_path)
    folder = tmp_path / "mine"
    script = folder / "train.py"
    script.write_text(script.read_text().replace("= 1000, 50", "= 20, 10"))
    run = headway("run", "--nodes", "2", folder=folder)
    assert "2 processes, from step 0" in run.stderr
    assert "step 20: loss" in run.stderr
    assert (folder / "runs/mine/output/checkpoint.pt").is_file()

    assert "run mine has already finished" in headway("run", folder=folder).stderr
    script.write_text(script.read_text().replace("= 20, 10", "= 30, 10"))
    run = headway("run", folder=folder)
    assert "code changed since the last start: 2-" in run.stderr
    assert "1 processes, from step 20" in run.stderr
    assert json.loads(headway("status", "--json", folder=folder).stdout)["state"] == "finished"


def test_a_mistake_of_the_script_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("version: 1\nname: it\ncommand: [python, train.py]\n")
    (tmp_path / "train.py").write_text("import no_such_package\n")
    run = headway("run", folder=tmp_path, expect=1)
    assert "No module named 'no_such_package'" in run.stderr
