"""headway tensorboard: curves of any run, made here and gone afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headway.report.event_files import EventFiles
from support.in_process import Headway
from support.interrupted_run import InterruptedRun
from support.waiting import wait_for


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, round(event.value, 4)) for event in events.Scalars(tag)]


def begun(folder: Path, steps: int) -> InterruptedRun:
    run = InterruptedRun(folder, "it", 100)
    run.launch()
    run.train(steps)
    return run


def test_metrics_and_evaluations_by_name(tmp_path: Path) -> None:
    run = begun(tmp_path, 10)
    run.evaluate()
    files = EventFiles(run.directory, tmp_path / "events")
    files.update()
    assert [step for step, _ in curve(tmp_path / "events", "train/loss")] == list(range(1, 11))
    assert curve(tmp_path / "events", "held-out/loss") == [(10, 4.9091)]
    files.close()


def test_a_running_run_is_followed(tmp_path: Path) -> None:
    run = begun(tmp_path, 10)
    files = EventFiles(run.directory, tmp_path / "events")
    files.update()
    run.evaluate()
    run.train(5)
    files.update()
    assert [step for step, _ in curve(tmp_path / "events", "train/lr")] == list(range(1, 16))
    assert len(curve(tmp_path / "events", "held-out/loss")) == 1
    files.close()


def test_steps_that_are_repeated_replace_the_first_attempt(tmp_path: Path) -> None:
    run = begun(tmp_path, 10)
    run.evaluate()
    files = EventFiles(run.directory, tmp_path / "events")
    files.update()
    again = {"step": 8, "generation": 2, "time": "2027-01-15T08:01:00.000Z", "loss": 77.0}
    run.directory.metrics.append({"rewind": 7, "generation": 2}, again)
    files.update()
    assert curve(tmp_path / "events", "train/loss")[-2:] == [(7, 5.2378), (8, 77.0)]
    assert curve(tmp_path / "events", "held-out/loss") == [(10, 4.9091)], "it is still logged"
    files.close()


def test_a_long_run_is_thinned_out_and_keeps_its_spikes(tmp_path: Path) -> None:
    run = begun(tmp_path, 1)
    lines = [
        {"step": step, "generation": 1, "time": "2027-01-15T08:01:00.000Z", "loss": 1.0}
        for step in range(2, 20_001)
    ]
    lines[12_345]["loss"] = 99.0
    run.directory.metrics.append(*lines)
    files = EventFiles(run.directory, tmp_path / "events")
    files.update()
    values = dict(curve(tmp_path / "events", "train/loss"))
    assert len(values) <= 3000
    assert values[12_347] == 99.0
    files.close()


def ask(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url.rstrip('/')}/data/{path}", timeout=10) as answer:
        return json.load(answer)


@pytest.fixture
def served(folder: Path) -> Any:
    """`headway tensorboard` of a run that has taken 5 steps: process, url, temporary folder."""
    begun(folder, 5)
    (folder / "temporary").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "headway.cli.main", "tensorboard", "it", "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder / "temporary")},
    )
    assert process.stderr is not None
    said = ""
    while "TensorBoard: http" not in said:
        line = process.stderr.readline()
        assert line, f"it ended: {said}"
        said += line
    yield process, said.split("TensorBoard: ")[1].split()[0], folder / "temporary"
    if process.poll() is None:
        process.kill()
        process.wait(10)


@pytest.mark.trap(39)
def test_served_here_until_ctrl_c(served: tuple[subprocess.Popen[str], str, Path]) -> None:
    process, url, temporary = served
    assert url.startswith("http://127.0.0.1:")
    wait_for("the run in TensorBoard", lambda: ask(url, "runs") == ["it"], 30)
    points = ask(url, "plugin/scalars/scalars?run=it&tag=train%2Floss")
    assert [step for _, step, _ in points] == [1, 2, 3, 4, 5]
    assert any(temporary.iterdir())
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert list(temporary.iterdir()) == []


def test_without_tensorboard(headway: Headway, folder: Path, monkeypatch: Any) -> None:
    begun(folder, 1)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    said = headway("tensorboard", "it")
    assert said.exit_code == 2
    assert "tensorboard is not installed" in said.err
    assert "hint: pip install tensorboard" in said.err
    assert not list(Path(tempfile.gettempdir()).glob("headway-tensorboard-*"))
