"""A run on the cluster of a model, a tokenizer and a dataset of the hub, and the hub moves on."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster_tool import network
from support.fake_hub import FakeHub, fake_hub
from support.hub_commits import first_commit
from support.lab import Lab
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(580),
    pytest.mark.long("two launches; what each library reads is seen in tests/unit/cli"),
]

RUN = """\
version: 1
name: it
model: {from: team/small}
data:
  train: {sources: ["hub:team/corpus"], tokenizer: team/small}
  sequence_length: 16
batch: {global: 4, micro: 1}
train_for: 100000 steps
optimizer: {lr: 1e-3}
precision: fp32
threads: 1
track: []
checkpoint: {every: 20s}
resources: {accelerators: cpu:1, nodes: 1..2}
"""


def of_commits(hub: FakeHub, commits: dict[str, str]) -> list[str]:
    return [path for path in hub.asked if any(one in path for one in commits.values())]


def test_pods_that_come_later_and_later_launches_read_what_the_first_did(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lab.folder / "run.yaml").write_text(RUN)
    with fake_hub(network.HOST) as hub:
        old = first_commit(hub, tmp_path, 0)
        here = hub.environment(tmp_path / "cache")
        for name, value in here.items():
            monkeypatch.setenv(name, value)
        there = {name: value for name, value in here.items() if name != "HF_HOME"}
        lab.change_target({"env": {**lab.target()["pod"]["env"], **there}})

        lab.headway("run", "--on", "lab", "--nodes", "1", seconds=300)
        assert of_commits(hub, old)
        new = first_commit(hub, tmp_path, 1)
        hub.asked.clear()
        lab.headway("scale", "--nodes", "2")
        lab.wait_for_workers(2, seconds=120)
        lab.headway("stop")
        # As Kubernetes does after a while: what the run keeps is in its directory then.
        jobs = f"/apis/batch/v1/namespaces/{lab.namespace}/jobs"
        lab.cluster.api.delete(f"{jobs}/headway-it", propagationPolicy="Background")
        wait_for("its Job to be gone", lambda: lab.cluster.api.find(f"{jobs}/headway-it") is None)
        lab.headway("run", "--on", "lab", "--nodes", "1", seconds=300)
        assert lab.directory().read_spec().hub_commits == old
        assert of_commits(hub, old), "each pod reads them anew"
        assert of_commits(hub, new) == []
        lab.headway("stop")
    lab.require_exact()
