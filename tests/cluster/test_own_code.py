"""An own model, an own loss with an auxiliary term, own metrics and an own transform in pods, one
of which loses its worker; and own code that fails there."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from headway.state.run_directory import RunDirectory
from support.lab import START_SECONDS, Lab
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(560),
    pytest.mark.long("two runs and one alone; the same without pods is in the gate"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-code"
STEPS, EVERY = 60, 30
SETTINGS = (f"train_for={STEPS} steps", f"evaluation.every={EVERY} steps", "batch.global=13")
MORE = ("batch.micro=2", "threads=1", "track=[]", "model.config.width=32")
TRAINED = ("loss", "loss_text", "balance", "grad_norm")
EVALUATED = ("loss", "loss_text", "balance", "accuracy", "accuracy_top5")


def options(name: str) -> list[str]:
    return [word for one in (f"name={name}", *SETTINGS, *MORE) for word in ("--set", one)]


def figures(directory: RunDirectory) -> dict[str, list[float]]:
    steps, evaluations = directory.steps(), directory.evaluations.read()[0]
    last = {line["step"]: line for line in evaluations if "loss" in line}
    assert list(last) == [EVERY, STEPS]
    trained = {name: [line[name] for line in steps] for name in TRAINED}
    return {**trained, **{f"held-out {n}": [e[n] for e in last.values()] for n in EVALUATED}}


def test_own_functions_in_pods(lab: Lab) -> None:
    ignored = shutil.ignore_patterns("runs", "prepared")
    shutil.copytree(EXAMPLE, lab.folder, ignore=ignored, dirs_exist_ok=True)
    run_file = lab.folder / "run.yaml"
    run_file.write_text(run_file.read_text().replace("name: own-code", "name: it"))
    lab.headway("run", "--on", "lab", "--nodes", "3", *options("it"))
    lab.wait_for_workers(3, START_SECONDS)
    lab.wait_for_step(3, START_SECONDS)
    before = lab.generation()["generation"]
    pids = sorted(lab.training_pids().items())[-1][1]
    os.kill(min(pids), signal.SIGKILL)
    wait_for("a step of others", lambda: lab.first_step_of(before + 1) is not None, START_SECONDS)
    wait_for("the end", lambda: lab.status()["state"] == "finished", START_SECONDS)
    lab.require_exact()
    lab.headway("run", *options("alone"))
    alone = figures(RunDirectory(lab.folder / "runs" / "alone"))
    found = figures(lab.directory())
    for name, values in alone.items():
        assert found[name] == pytest.approx(values, rel=1e-5), name
    _fail_in_pods(lab)


def _fail_in_pods(lab: Lab) -> None:
    """An edit, and the same command: the pods have it, and the error has the user's line."""
    mine = lab.folder / "src" / "mine.py"
    there = "    count = counted.sum()\n"
    assert mine.read_text().count(there) == 1
    mine.write_text(mine.read_text().replace(there, there + "    raise ValueError('an edit')\n"))
    lab.headway("delete", "it", "--yes")
    with lab.typed("run", "--on", "lab", "--nodes", "2", *options("edited")) as launch:
        assert launch.end(START_SECONDS) == 1, launch.output
    assert "your code failed in step 1: ValueError: an edit" in launch.output
    assert "mine.py:24 in loss: raise ValueError('an edit')" in launch.output
    assert "Traceback" not in launch.output
