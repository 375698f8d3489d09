"""`headway plan RUN` plans a run by the time of the steps that it has recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.clock import SystemClock, stamp
from headway.spec.load import load_run
from headway.spec.resolve import Hardware, resolve
from headway.state.run_directory import RunDirectory
from support.in_process import Headway

RUN = """\
version: 1
name: trial
model: {type: gpt2, config: {vocab_size: 512, n_layer: 2, n_embd: 64, n_head: 2}}
data: {train: prepared, sequence_length: 64}
batch: {global: 16, micro: 4}
train_for: 20 steps
"""
START = 1.8e9
LONGER = ("--set", "train_for=1000 steps")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def trained(
    folder: Path,
    seconds: list[float],
    more_keys: str = "",
    gpus: int = 0,
    device: str = "cpu",
    workers: int = 1,
) -> RunDirectory:
    """A run whose first steps took 9 s each, and the others these seconds."""
    (folder / "run.yaml").write_text(RUN + more_keys)
    loaded, machine = load_run(folder), Hardware(cores=2, cuda_devices=gpus)
    resolved = resolve(
        loaded, machine, nodes=1, parameters=None, train_set="prepared", validation_sets={}
    )
    directory = RunDirectory.create(folder / "runs" / "trial", SystemClock())
    directory.write_spec(resolved)
    note(directory, "started", workers=workers, device=device, samples=100, total_steps=20)
    for step, each in enumerate([9.0, 9.0, 9.0, *seconds], 1):
        time = stamp(START + 10 * step)
        directory.metrics.append({"step": step, "generation": 1, "time": time, "seconds": each})
    return directory


def note(directory: RunDirectory, event: str, after: float = 0.0, **facts: Any) -> None:
    directory.events.append({"time": stamp(START + after), "event": event, **facts})


def planned(headway: Headway, *options: str) -> dict[str, Any]:
    said = headway("plan", "trial", *options, "--json")
    assert said.exit_code == 0, said.err
    (plan,) = json.loads(said.out)["plans"]
    found: dict[str, Any] = plan
    return found


def test_it_plans_a_longer_run_of_the_same_steps(folder: Path, headway: Headway) -> None:
    trained(folder, [0.5] * 10)
    plan = planned(headway, *LONGER, "--set", "evaluation.every=100 steps")
    step = plan["time"]["step_seconds"]
    assert (step["value"], step["basis"]) == (0.5, "measured")
    assert step["reason"] == "mean of 10 steps, 0.5 to 0.5 s, recorded by run trial"
    assert 500 < plan["interruptions"]["run_seconds"]["value"] < 600
    by_folder = headway("plan", "runs/trial", *LONGER)
    assert "  a step            0.50 s" in by_folder.out


@pytest.mark.parametrize(
    "options",
    [
        ("--set", "batch.global=32"),
        ("--set", "batch.micro=2"),
        ("--set", "data.sequence_length=32"),
        ("--set", "precision=fp32"),
        ("--set", "model.config.n_layer=3"),
        ("--set", "memory.checkpoint_activations=true"),
        ("--nodes", "2"),
        ("--nodes", "1", "--on", "H100:1"),
    ],
)
def test_other_steps_are_not_planned_by_them(
    folder: Path, headway: Headway, options: tuple[str, ...]
) -> None:
    trained(folder, [0.5] * 10)
    plan = planned(headway, *LONGER, *options)
    assert plan.get("time", {}).get("step_seconds", {}).get("basis") != "measured"
    assert any("trial has not recorded enough steps of this" in note for note in plan["notes"])


def test_a_few_steps_say_too_little(folder: Path, headway: Headway) -> None:
    trained(folder, [0.5] * 4)
    plan = planned(headway, *LONGER)
    assert "time" not in plan
    assert any("headway run --set name=trial" in note for note in plan["notes"])


def test_steps_since_the_members_changed_count(folder: Path, headway: Headway) -> None:
    directory = trained(folder, [0.5] * 10 + [9.0] * 3 + [0.25] * 10)
    note(directory, "changed", after=10 * 13 + 5, workers=2)
    assert planned(headway, *LONGER, "--nodes", "2")["time"]["step_seconds"]["value"] == 0.25
    assert "time" not in planned(headway, *LONGER, "--nodes", "1")


def test_a_device_that_has_run_it_is_calibrated(folder: Path, headway: Headway) -> None:
    gpus = "resources: {accelerators: H100:8}\n"
    trained(folder, [0.5] * 10, gpus, gpus=8, device="NVIDIA H100 80GB HBM3", workers=8)
    takes = headway("plan", "trial", *LONGER).out
    assert "calibrated" not in takes
    assert "  a step            0.50 s (" in takes
    for other in (("--set", "batch.micro=2"), ("--on", "A100-80:8")):
        assert "not calibrated on Headway" in headway("plan", "trial", *LONGER, *other).out
