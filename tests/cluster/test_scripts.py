"""A script that knows nothing of Headway, on pods; it writes to a bucket."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

from cluster_tool import faults
from support.example_scripts import SCRIPTS, Script
from support.lab import Lab
from support.plugs import away_from_the_coordinator
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

START_SECONDS, END_SECONDS = 240.0, 240.0
"""Pods that import torch at the same time on two cores; not timed."""
EPOCHS = 3


@pytest.mark.long("a minute and a half: pods import torch three times on two cores")
def test_a_pod_loses_power_and_the_model_is_in_the_bucket(lab: Lab, bucket: Path) -> None:
    script = SCRIPTS["images"]
    targets = lab.folder / "targets.yaml"
    lab.folder = script.make_run(lab.folder, EPOCHS)
    targets.rename(lab.folder / "targets.yaml")
    output = bucket / "runs" / script.name / "output"

    lab.headway("run", "--on", "lab", "--nodes", "2")
    wait_for("a checkpoint", lambda: any(output.glob(script.checkpoints)), START_SECONDS)
    saved = written(output, script)
    faults.pull_plug(lab.node_of(away_from_the_coordinator(lab)))
    state = wait_for("the end", lambda: ended_as(lab), END_SECONDS)
    assert state == "finished", lab.headway("logs", "--all").stdout

    weights = torch.load(io.BytesIO((output / script.model).read_bytes()))
    assert len(weights) > 1
    now = written(output, script)
    assert len(now) == EPOCHS
    assert saved.items() <= now.items(), "no epoch is trained again that was saved"


def written(output: Path, script: Script) -> dict[str, int]:
    """When each of its checkpoints was."""
    return {path.name: path.stat().st_mtime_ns for path in output.glob(script.checkpoints)}


def ended_as(lab: Lab) -> str | None:
    state = str(lab.status()["state"])
    return state if state in ("finished", "failed", "stopped") else None
