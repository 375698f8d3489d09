"""The user's code and packages in pods: all of the folder, what it requires, and an edit."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from headway.launch.packages import python_here
from support.lab import Lab
from support.own_loss import write_own_loss
from support.waiting import wait_for
from support.wheels import resolve_offline, write_wheel

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.mark.long("three launches; what it rests on is tested without a cluster")
def test_code_and_packages_reach_pods_and_so_does_an_edit(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    write_wheel(wheels, "torch", "2.3.0", {"torch/__init__.py": ""})
    write_wheel(wheels, "polite", "1.0", {"polite.py": "x = 1\n"})
    write_wheel(wheels, "old", "1.0", {"old.py": ""}, ["torch==2.3.0"])
    resolve_offline(monkeypatch, wheels, tmp_path)
    write_own_loss(lab.folder, imports="import polite\n")
    requirements, run_file = lab.folder / "requirements.txt", lab.folder / "run.yaml"
    run = yaml.safe_load(run_file.read_text())
    run["code"]["requirements"] = "requirements.txt"
    run_file.write_text(yaml.safe_dump(run, sort_keys=False))

    requirements.write_text("old\n")
    said = lab.headway("run", "--on", "lab", expect=2).stderr
    assert "old" in said
    assert "torch is the workers' own" in said

    requirements.write_text("polite\n")
    lab.change_target(python="3.14")
    said = lab.headway("run", "--on", "lab", expect=1).stderr
    here = python_here().python
    assert f"were resolved for Python 3.14, and this image has Python {here}" in said
    assert f"in the target: python: {here}" in said

    lab.change_target(python=here)
    lab.headway("run", "--on", "lab", "--nodes", "2")
    lab.wait_for_step(3)
    lab.headway("stop")
    assert lab.directory().steps()[-1]["weight"] == 0
    (lab.folder / "src" / "weight.yaml").write_text("weight: 5\n")
    said = lab.headway("run", "--on", "lab", "--nodes", "2").stderr
    assert "code changed since the last start: 2-" in said
    assert "resolving" not in said
    wait_for("the edit", lambda: lab.directory().steps()[-1]["weight"] == 5, 60)
    listed = lab.headway("target", "storage", "lab").stdout
    assert [line.split()[0] for line in listed.splitlines() if "packages" in line], listed
    lab.headway("stop")
    lab.require_exact()
