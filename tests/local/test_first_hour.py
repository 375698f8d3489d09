"""A first hour: README's commands in under two minutes in all; then own text, a mistake and its
fix, a killed worker, a resume, more workers, a report, the same from Python, an export and a
text."""

from __future__ import annotations

import html
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import headway as from_python
from headway.cli.members import readable_names
from support.commands import Typed, headway
from support.stolen_time import Stopwatch
from support.waiting import wait_for

pytestmark = [pytest.mark.local, pytest.mark.timeout(400)]

GOLDEN = json.loads((Path(__file__).parent / "golden" / "tiny.json").read_text())
LIMIT_SECONDS = 120


@pytest.mark.long("half a minute of training; own text takes the same commands")
def test_init_run_generate_export(tmp_path: Path) -> None:
    watch = Stopwatch()
    headway("init", "tiny", "my-run", folder=tmp_path)
    folder = tmp_path / "my-run"
    run = headway("run", folder=folder)
    text = headway("generate", "--prompt", "Once", "--max-tokens", "40", folder=folder).stdout
    headway("export", "--into", "exported", folder=folder)
    seconds = watch.seconds

    status = json.loads(headway("status", "--json", folder=folder).stdout)
    assert status["state"] == "finished"
    assert status["step"] == status["total_steps"] == 300
    assert status["evaluations"]["held-out"] == pytest.approx(
        GOLDEN["held_out_loss"], abs=GOLDEN["tolerance"]
    )
    assert "step 300/300" in run.stderr
    assert text.startswith("Once")
    assert len(text.split()) > 10
    assert (folder / "exported" / "model.safetensors").is_file()
    assert (folder / "exported" / "tokenizer.json").is_file()
    assert any((folder / "runs" / "my-run" / "tensorboard").iterdir())
    assert seconds < LIMIT_SECONDS

    lines = [json.loads(line) for line in (folder / "runs/my-run/metrics.jsonl").open()]
    assert [line["step"] for line in lines] == list(range(1, 301))
    assert {"loss", "perplexity", "lr", "grad_norm", "tokens_per_second"} <= set(lines[0])
    assert "mfu" not in lines[0], "no MFU may be claimed for a device without a published peak"
    assert "MFU is not given" in run.stderr

    listed = headway("list", folder=folder).stdout
    assert "my-run" in listed
    assert "finished" in listed

    again = headway("run", folder=folder, seconds=10)
    assert "has already finished" in again.stderr


OWN_RUN = """\
version: 1
name: mine
model: {type: gpt2, config: {n_layers: 2, n_head: 2, n_embd: 32, n_positions: 64}}
data:
  train: {sources: [text/*.txt], tokenizer: {train: {vocab: 384}}}
  validation: {held-out: {sources: [held-out.txt]}}
  sequence_length: 32
batch: {global: 8, micro: 2}
train_for: 100k steps
precision: fp32
threads: 1
evaluation: {every: 50 steps}
checkpoint: {every: auto}
"""
STORY = "The {animal} went home before the rain, and all was well in the end. "


def report_of_plan_and_run(folder: Path, output: str) -> str:
    """The page, which compares what was planned; `auto` was decided, said and kept."""
    spec = json.loads((folder / "runs/mine/spec.json").read_text())
    assert f"checkpoints every {spec['checkpoint_every']} (auto: " in output
    headway("report", folder=folder)
    page = (folder / "report.html").read_text()
    assert "<h2>Planned and measured</h2>" in page
    return page


@pytest.mark.trap(23)
def test_own_text_a_mistake_a_kill_a_resume_and_all_that_is_left_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As typed in a terminal, in a folder that only has the user's text."""
    (tmp_path / "text").mkdir()
    for animal in ("cat", "dog", "fox", "hen"):
        (tmp_path / "text" / f"{animal}.txt").write_text(STORY.format(animal=animal) * 50)
    (tmp_path / "held-out.txt").write_text(STORY.format(animal="owl") * 20)
    (tmp_path / "run.yaml").write_text(OWN_RUN)

    refused = headway("check", folder=tmp_path, expect=2).stderr
    assert "run.yaml:3:30: model.config: gpt2 has no field 'n_layers'" in refused
    assert "hint: did you mean n_layer?" in refused
    (tmp_path / "run.yaml").write_text(OWN_RUN.replace("n_layers", "n_layer"))
    headway("check", folder=tmp_path)

    with Typed("run", "--nodes", "2", folder=tmp_path) as run:
        wait_for("steps", lambda: step_of(tmp_path) > 20, 90)
        victim = status_of(tmp_path)["members"][1]["pid"]
        os.kill(victim, signal.SIGKILL)
        wait_for("the lost worker's successor", lambda: others_than(victim, tmp_path) == 2, 60)
        headway("scale", "--nodes", "3", folder=tmp_path)
        wait_for("three workers", lambda: status_of(tmp_path)["workers"] == 3, 60)
        before = step_of(tmp_path)
        wait_for("further steps", lambda: step_of(tmp_path) > before + 50, 60)
        assert run.interrupt(60) == 6, run.output
    assert "hint: run the same command to resume" in run.output
    stopped_at = step_of(tmp_path)
    assert planned_step(tmp_path)["basis"] == "measured"

    with Typed("run", folder=tmp_path) as again:
        again.wait_for(f"resuming from step {stopped_at}", 90)
        assert "3 nodes, as set by headway scale" in again.output
        wait_for("further steps", lambda: step_of(tmp_path) > stopped_at, 60)
        headway("stop", folder=tmp_path)
        assert again.end(60) == 6
    last = step_of(tmp_path)
    assert f"exact: {last} steps" in headway("ledger", "verify", folder=tmp_path).stdout
    row = headway("list", folder=tmp_path).stdout.splitlines()[1].split()
    assert row[:3] == ["mine", "stopped", f"{last}/100000"]
    assert float(row[4]) < 6, "the loss of the held-out text"

    page = report_of_plan_and_run(tmp_path, run.output)
    events = json.loads(headway("events", "--json", folder=tmp_path).stdout)
    changes = [event["reason"] for event in events if event["event"] == "changed"]
    assert len(changes) >= 3, "a worker is lost, replaced, and another one is added"
    assert all(html.escape(readable_names(reason, ranks=1)) in page for reason in changes)
    monkeypatch.chdir(tmp_path)
    run_in_python = from_python.open("mine")
    assert run_in_python.status().step == last
    assert list(run_in_python.metrics()["step"]) == list(range(1, last + 1))
    assert run_in_python.events() == events
    headway("export", "--into", "exported", folder=tmp_path)
    assert (tmp_path / "exported" / "model.safetensors").is_file()
    told = headway("generate", "--prompt", "The cat", "--max-tokens", "8", folder=tmp_path).stdout
    assert told.startswith("The cat")
    headway("delete", "mine", "--yes", folder=tmp_path)
    assert not (tmp_path / "runs" / "mine").exists()


def status_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(headway("status", "--json", folder=folder).stdout)
    return found


def planned_step(folder: Path) -> dict[str, Any]:
    """Of a plan by the steps that three workers have recorded."""
    longer = ("--nodes", "3", "--set", "train_for=200k steps")
    said = headway("plan", "mine", *longer, "--json", folder=folder).stdout
    found: dict[str, Any] = json.loads(said)["plans"][0]["time"]["step_seconds"]
    return found


def step_of(folder: Path) -> int:
    """From the log itself, which is quicker to ask often."""
    log = folder / "runs" / "mine" / "metrics.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    steps = [json.loads(line) for line in lines[-1:] if line.endswith("}")]
    return int(steps[0].get("step", 0)) if steps else 0


def others_than(pid: int, folder: Path) -> int:
    return sum(member["pid"] != pid for member in status_of(folder)["members"])
