"""headway compare: which run is better, and what was done differently."""

from __future__ import annotations

import json
from pathlib import Path

from support.in_process import Headway
from support.interrupted_run import InterruptedRun, ten_interruptions


def rows_of(out: str) -> dict[str, list[str]]:
    """Cells by heading: they are two blanks apart."""
    lines = [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.split("\n")
    ]
    return {line[0]: line[1:] for line in lines[1:] if line}


def test_losses_interruptions_and_what_differs(headway: Headway, folder: Path) -> None:
    ten_interruptions(folder, "spot", 1e-4)
    calm = InterruptedRun(folder, "calm", 600, 1e-2)
    calm.launch()
    calm.train(300)
    calm.evaluate()
    calm.end("stopped")
    said = headway("compare", "spot", "calm")
    assert said.exit_code == 0, said.err
    assert said.out.split("\n")[0].split() == ["spot", "calm"]
    rows = rows_of(said.out)
    assert rows["state"] == ["finished", "stopped"]
    assert rows["step"] == ["600 of 600", "300 of 600"]
    assert rows["interrupted"] == ["8 times, 0:20", "never"]
    assert rows["optimizer.lr"] == ["0.0001", "0.01"]
    assert rows["time"][1] == "5:09"
    losses = [6 / (1 + step / 45) for step in (600, 300)]
    assert rows["held-out"] == rows["held-out, best"] == [f"{loss:.4f}" for loss in losses]
    assert float(rows["loss, best"][0]) < float(rows["loss"][0])
    assert "model.type" not in rows, "it is the same in both"


def test_as_data(headway: Headway, folder: Path) -> None:
    for name, lr in (("a", 1e-4), ("b", 1e-3)):
        run = InterruptedRun(folder, name, 10, lr)
        run.launch()
        run.train(10)
    found = json.loads(headway("compare", "a", "b", "--json").out)
    assert [run["name"] for run in found["runs"]] == ["a", "b"]
    assert found["runs"][0]["tokens_per_second"] == 256
    assert found["runs"][0]["interruptions"] == 0
    assert found["settings"]["optimizer.lr"] == ["0.0001", "0.001"]


def test_runs_without_steps(headway: Headway, folder: Path) -> None:
    for name, rate in (("new", 1e-4), ("newer", 1e-3)):
        InterruptedRun(folder, name, 10, rate)
    said = headway("compare", "new", "newer")
    assert said.exit_code == 0, said.err
    assert rows_of(said.out)["tokens/s"] == ["-", "-"]


def test_no_such_run_to_compare(headway: Headway, folder: Path) -> None:
    InterruptedRun(folder, "a", 10)
    said = headway("compare", "a", "nothing")
    assert said.exit_code == 3
    assert said.out == ""
