"""The time of a step that was measured is that of later plans of the same run on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.cli.launch_plan import note_plan
from headway.cli.model_shape import read_workload
from headway.cli.plan import measured_steps
from headway.cli.plan.measured_steps import keep_step_time, kept_step_time
from headway.plan.figure import Figure
from headway.plan.fleet import Fleet
from headway.plan.outcome import Measured, outcome_rows
from headway.plan.workload import Layout, Workload
from headway.report.planned import kept_plan
from headway.spec.load import load_run
from headway.state.run_directory import RunDirectory
from support.in_process import Headway

HERE, WHOLE = Fleet(device=None, devices_per_node=1, nodes=1), Layout(1, recomputes=False)
STEP = Figure(0.5, 0.4, 0.6, "measured", "mean of 7 steps on this machine")


@pytest.fixture
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADWAY_CACHE", str(folder / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return folder / "cache"


def workload(*overrides: str) -> Workload:
    found = read_workload(load_run("tiny", list(overrides)))
    assert isinstance(found, Workload)
    return found


def test_it_is_found_by_the_next_plan_and_kept_by_the_next_run(
    folder: Path, headway: Headway, cache: Path
) -> None:
    assert "only a measurement says" in " ".join(headway("plan", "tiny").out.split())
    keep_step_time(workload(), HERE, WHOLE, STEP)
    said = headway("plan", "tiny", "--explain").out
    assert "only a measurement says" not in said
    assert "mean of 7 steps on this machine (20" in " ".join(said.split()), "with its date"
    location = str(folder / "runs" / "it")
    note_plan(load_run("tiny"), location, nodes=1)
    kept = kept_plan(RunDirectory(location))
    assert kept is not None
    assert kept.figures["step_seconds"].value == 0.5
    rows = outcome_rows(kept, Measured(100, 300, 4096, 0.52, 0.9, 0.95, {}, 60.0, 0))
    (step,) = [row for row in rows if row.key == "step_seconds"]
    assert (step.why, step.ratio) == ("as planned", pytest.approx(1.04))


def test_it_is_of_these_steps_on_this_machine_alone(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_step_time(workload(), HERE, WHOLE, STEP)
    found = kept_step_time(workload("train_for=7 steps", "name=other"), HERE, WHOLE)
    assert found is not None
    assert found.seconds.value == 0.5
    for other in ("batch.global=32", "batch.micro=2", "data.sequence_length=32", "precision=bf16"):
        assert kept_step_time(workload(other), HERE, WHOLE) is None, other
    assert kept_step_time(workload("model.config.n_layer=3"), HERE, WHOLE) is None
    assert kept_step_time(workload(), replace(HERE, nodes=2), WHOLE) is None
    assert kept_step_time(workload(), HERE, replace(WHOLE, recomputes=True)) is None
    monkeypatch.setattr(measured_steps.platform, "node", lambda: "another-machine")
    assert kept_step_time(workload(), HERE, WHOLE) is None


def test_it_is_not_of_another_place(headway: Headway, cache: Path, folder: Path) -> None:
    keep_step_time(workload(), HERE, WHOLE, STEP)
    (folder / "targets.yaml").write_text("lab: {pod: {resources: {cpu: 1, memory: 4Gi}}}\n")
    assert "only a measurement says" in " ".join(headway("plan", "tiny", "--on", "lab").out.split())


@pytest.mark.parametrize(
    "content", ["", "{}", '{"version": 9}', '{"version": 1, "step_seconds": 1}']
)
def test_a_damaged_one_is_none(cache: Path, content: str) -> None:
    keep_step_time(workload(), HERE, WHOLE, STEP)
    (file,) = (cache / "measured-steps").iterdir()
    file.write_text(content)
    assert kept_step_time(workload(), HERE, WHOLE) is None


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(cache: Path) -> None:
    cache.write_text("a file")
    keep_step_time(workload(), HERE, WHOLE, STEP)
    assert kept_step_time(workload(), HERE, WHOLE) is None
