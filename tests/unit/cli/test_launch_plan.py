"""The plan of a start, as it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.cli.launch_plan import note_plan, planned
from headway.plan.outcome import PLAN
from headway.report.planned import kept_plan
from headway.spec.load import load_run
from headway.spec.resolve import Resolved
from headway.state.run_directory import RunDirectory
from support.fake_kube import fake_kube
from support.in_process import Headway
from support.launchable import write_launchable

RUN = """\
version: 1
model: {type: llama, config: {vocab_size: 32000}}
data: {train: prepared, sequence_length: 4096}
batch: {global: 512, micro: 1}
train_for: 1000 steps
resources: {accelerators: H100:8}
"""
TARGETS = "lab: {resources: {accelerators: A100-80:8, nodes: 4}}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "targets.yaml").write_text(TARGETS)
    return tmp_path


def test_it_is_that_of_the_nodes_that_are_started(folder: Path) -> None:
    location = str(folder / "runs" / "it")
    note_plan(load_run(), location, nodes=4)
    kept = kept_plan(RunDirectory(location))
    assert kept is not None
    assert kept.place == "4 nodes of H100:8 (H100:8, as the run file asks)"
    assert kept.figures["parameters"].value == 6_738_415_616
    assert kept.figures["steps"].value == 1000


def test_on_a_target(folder: Path) -> None:
    loaded = load_run(None, ["resources={nodes: 2..8}"])
    kept = planned(loaded, 3, "lab")
    assert kept is not None
    assert kept.place == "3 nodes of H100:8 (target lab)"


@pytest.mark.parametrize("key", ['model={call: "mine:build"}', "model={from: nobody/knows}"])
def test_what_cannot_be_planned_is_no_reason_to_stop(folder: Path, key: str) -> None:
    loaded = load_run(None, [key])
    note_plan(loaded, str(folder / "runs" / "it"), nodes=1)
    assert not (folder / "runs" / "it" / PLAN).exists()


def test_a_storage_that_does_not_take_it_is_no_reason_either(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "runs").write_text("a file")
    note_plan(load_run(), str(folder / "runs" / "it"), nodes=1)
    assert "warning: the plan of this start is not kept: " in capsys.readouterr().err


def test_a_launch_on_a_target_keeps_it_there_and_decides_the_interval(
    headway: Headway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_launchable(folder, monkeypatch)
    with (folder / "targets.yaml").open("a") as targets:
        targets.write("  interruptions: {on_demand: 10% per hour}\n")
    with fake_kube(folder) as kube:
        kube.job_status = {"conditions": [{"type": "Complete", "status": "True"}]}
        auto = ("--set", "checkpoint.every=auto", "--set", "elastic=restart")
        said = headway("run", "--on", "lab", *auto)
        assert said.exit_code == 0, said.err
        (spec,) = [
            one["data"]["spec.json"]
            for one in kube.objects.values()
            if "spec.json" in one.get("data", {})
        ]
    every = Resolved.model_validate_json(spec).save_every
    assert f"checkpoints every {every} (auto: headway check says why)" in said.err
    assert every.rest.amount < 600, "two nodes that are lost every five hours"
    kept = kept_plan(RunDirectory(folder / "claim" / "runs" / "it"))
    assert kept is not None
    assert kept.place == "2 nodes of cpu:1 (target lab)"
