"""Heartbeats of a script become the records that `status` and goodput read."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.clock import seconds_of
from headway.script.heartbeat import HeartbeatFile, StepRecords
from headway.state.goodput import goodput
from headway.state.record_log import FileLog
from headway.state.rewinds import apply_rewinds
from support.clock import Patient


@pytest.mark.parametrize(
    ("text", "step"), [("12", 12), ("12\n", 12), ("12 saved", 12), ("", None), ("epoch 3", None)]
)
def test_what_a_script_may_write(tmp_path: Path, text: str, step: int | None) -> None:
    file = HeartbeatFile(tmp_path / "beat")
    assert file.new() is None
    (tmp_path / "beat").write_text(text)
    heartbeat = file.new()
    assert heartbeat is not None
    assert heartbeat.step == step
    assert file.new() is None, "not a new one"


def test_steps_that_a_later_generation_repeats_count_once(tmp_path: Path) -> None:
    log, clock = FileLog(tmp_path / "metrics.jsonl"), Patient()
    first = StepRecords(log, 1, clock)
    for step in (1, 20, 40):
        first.add(step)
        clock.passed += 2.0
    second = StepRecords(log, 3, clock)
    for step in (31, 50, 50, 60):
        second.add(step)
        clock.passed += 2.0
    records = log.read()[0]
    kept = apply_rewinds(records)
    assert [one["step"] for one in kept] == [1, 20, 31, 50, 60]
    assert [one["seconds"] for one in kept] == [0.0, 2.0, 0.0, 2.0, 4.0]
    assert all(one["loss"] is None and seconds_of(one["time"]) > 0 for one in kept)
    found = goodput([], records)
    assert found is not None
    assert found.lost_seconds["redone"] == 2.0


def test_a_script_that_counts_anew_in_its_next_phase(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "metrics.jsonl")
    records = StepRecords(log, 1, Patient())
    for step in (0, 5, 9, 0, 1):
        records.add(step)
    assert [one["step"] for one in apply_rewinds(log.read()[0])] == [1]
