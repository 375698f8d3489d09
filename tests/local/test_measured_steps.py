"""Steps of a run, timed for `headway plan --measure`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli.model_shape import UnknownShape, read_workload
from headway.cli.plan.measurement import measured_here
from headway.clock import SystemClock
from headway.errors import RunFailed
from headway.plan.fleet import Fleet
from headway.plan.workload import Layout
from headway.spec.load import load_run
from headway.state.run_directory import RunDirectory
from headway.train import measure_steps
from support.commands import headway
from support.live import RUN_FILE, write_run
from support.workers import resolved_run

pytestmark = pytest.mark.local


@pytest.mark.parametrize(("most_seconds", "num_steps"), [(1000.0, 5), (0.0, 1)])
def test_five_steps_of_a_real_run_after_two_and_fewer_if_there_is_no_time(
    tmp_path: Path, stream: dict[str, Path], most_seconds: float, num_steps: int
) -> None:
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    resolved = resolved_run(tmp_path, stream, overrides=["batch.global=2"])
    RunDirectory.create(resolved.run_directory, SystemClock()).write_spec(resolved)
    job = {
        "store": "",
        "least_seconds": 0.0,
        "most_seconds": most_seconds,
    }
    seconds = measure_steps.measure(job, resolved.run_directory, rank=0)
    assert len(seconds) == num_steps
    assert min(seconds) > 0
    taken = len(list(RunDirectory(resolved.run_directory).steps()))
    assert taken == (7 if num_steps == 5 else 1)


SHARDED = [
    "shard=node",
    "resources.accelerators=cpu:2",
    "data.sequence_length=32",
    "batch={global: 20, micro: 1}",
]


@pytest.mark.timeout(600)
@pytest.mark.long("starts two workers that import torch and measures them for ten seconds")
def test_workers_of_a_sharded_preset_are_measured_together(tmp_path: Path) -> None:
    loaded = load_run("tiny", SHARDED)
    workload = read_workload(loaded)
    assert not isinstance(workload, UnknownShape)
    found = measured_here(loaded, workload, Fleet(None, 2, 1), Layout(2, recomputes=False))
    assert found.seconds.value > 0
    assert found.num_passes == 10
    assert "by steps of 4 and 8 of its 10 passes" in found.seconds.reason
    assert found.seconds.basis == "measured"
    assert "with random tokens" in found.seconds.reason


@pytest.mark.timeout(600)
@pytest.mark.long("starts a worker that imports torch")
def test_a_model_that_cannot_be_built_is_said_with_its_cause(tmp_path: Path) -> None:
    loaded = load_run("tiny", ["batch.global=4", "model.config.activation_function=none-such"])
    workload = read_workload(loaded)
    assert not isinstance(workload, UnknownShape)
    with pytest.raises(RunFailed, match="the steps to measure could not be run"):
        measured_here(loaded, workload, Fleet(None, 1, 1), Layout(1, recomputes=False))


@pytest.mark.timeout(900)
@pytest.mark.long("measures a run for ten seconds, then runs it")
def test_a_run_after_a_measurement_has_a_time_to_compare_with(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In epochs: the measured step and the prepared set give the whole run its time."""
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    run_file = RUN_FILE.replace("100000 steps", "0.2 epochs").replace("global: 14", "global: 20")
    write_run(tmp_path, text, run_file)
    headway("plan", "--measure", folder=tmp_path, seconds=400)
    headway("run", folder=tmp_path, seconds=400)
    rows = json.loads(headway("plan", "it", "--json", folder=tmp_path).stdout)["rows"]
    for key in ("step_seconds", "tokens_per_second", "goodput", "run_seconds"):
        assert rows[key]["planned"] is not None, key
        assert rows[key]["measured"] > 0, key
    assert rows["step_seconds"]["planned"]["basis"] == "measured"
    shown = headway("plan", "it", folder=tmp_path).stdout
    assert "not planned" not in shown
