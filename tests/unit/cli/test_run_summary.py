"""What `headway run` says when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from headway.cli.run_summary import as_typed_from, next_commands, show_summary
from headway.clock import SystemClock, stamp
from headway.spec.resolve import Resolved
from headway.state.run_directory import RunDirectory
from support.chains import saved_at

START = 1.8e9


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(tmp_path / "project" / "runs" / "it", SystemClock())
    made.launcher.append({"time": stamp(START), "event": "launched"})
    for step, loss in enumerate([5.0, 2.5, None, 3.0], start=1):
        made.metrics.append(
            {
                "step": step,
                "time": stamp(START + 10 * step),
                "loss": loss,
                "tokens": 1000 * step,
                "seconds": 8.0,
                "data_seconds": 0.0,
            }
        )
    for step, loss in ((2, 4.0), (4, 3.5)):
        made.evaluations.append({"step": step, "set": "held-out", "loss": loss})
    saved_at(made, 4)
    return made


def test_what_a_run_came_to(directory: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    show_summary(directory)
    assert capsys.readouterr().err.splitlines() == [
        "time        0:40",
        "tokens      4k, 100 a second",
        "loss        3.0000; best 2.5000 at step 2",
        "held-out    3.5000 at step 4, the best",
        "goodput     80.0% of 0:40; the rest went to other 0:08",
        f"checkpoint  {directory.location}/checkpoints/step-00000004.g000001",
    ]


def test_a_run_without_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_summary(RunDirectory.create(tmp_path / "runs" / "new", SystemClock()))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("objective", "own_model", "commands"),
    [
        ("causal", False, ["generate", "export", "report"]),
        ("causal", True, ["generate", "report"]),
        ("masked", False, ["export", "report"]),
        ("masked", True, ["report"]),
    ],
)
def test_only_commands_that_work_for_this_run(
    directory: RunDirectory, objective: str, own_model: bool, commands: list[str]
) -> None:
    if not own_model:
        directory.store.write("model/config.json", b"{}")
    run: Any = type("Run", (), {"objective": type("Objective", (), {"type": objective})})
    resolved = cast(Resolved, type("Resolved", (), {"run": run, "is_script": False}))
    assert [line.split()[1] for line in next_commands(resolved, directory)] == commands


def test_a_run_is_named_so_that_it_is_found(directory: RunDirectory, tmp_path: Path) -> None:
    assert as_typed_from(directory, tmp_path / "project") == "it"
    assert as_typed_from(directory, tmp_path) == "project/runs/it"
    RunDirectory.create(tmp_path / "runs" / "it", SystemClock())
    assert as_typed_from(directory, tmp_path) == "project/runs/it", "that is another one"
