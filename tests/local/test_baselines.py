"""Headway's loop beside a bare one, as `headway prove` measures it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.state.run_directory import RunDirectory
from headway.train import baselines
from support.live import RUN_FILE
from support.workers import resolved_run

pytestmark = pytest.mark.local


def test_both_loops_take_turns_and_give_one_figure(tmp_path: Path, stream: dict[str, Path]) -> None:
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    resolved = resolved_run(tmp_path, stream, overrides=["batch.global=2"])
    RunDirectory.create(resolved.run_directory, SystemClock()).write_spec(resolved)
    job = {"run": resolved.run_directory, "against": "bare", "store": "", "seconds": 0.0}
    found = baselines.measure(job, rank=0)
    assert found["rounds"] == baselines.MIN_ROUNDS
    assert found["workers"] == 1
    assert found["quartiles"][0] <= found["ratio"] <= found["quartiles"][1]
    assert 0 < found["tokens_per_second"] < float("inf")
    assert found["mfu"] is None
    assert "CPUs" in found["no_mfu"]
    turns = baselines.WARMUP_TURNS + baselines.MIN_ROUNDS
    steps = [line["step"] for line in RunDirectory(resolved.run_directory).steps()]
    assert steps == list(range(1, turns * baselines.TURN_STEPS + 1)), "real steps of a real run"
