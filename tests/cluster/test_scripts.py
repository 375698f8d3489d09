"""Scripts that know nothing of Headway, on pods: a machine loses its power, and each finishes by a
checkpoint of its own. How long it took is printed (`pytest -s`); bench/results has the figures."""

from __future__ import annotations

import io
import json
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from cluster_tool import faults
from cluster_tool.api import ApiError
from headway.clock import seconds_of
from support.example_scripts import SCRIPTS, Script, started
from support.lab import Lab
from support.plugs import away_from_the_coordinator
from support.stolen_time import Stopwatch
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.long("a minute and more each: pods import torch twice or more on two cores"),
]

START_SECONDS, RESTART_SECONDS, END_SECONDS = 300.0, 300.0, 400.0
"""Pods that import torch at the same time on two cores; not timed."""
NODES = 3
LENGTHS: dict[str, tuple[int, tuple[str, ...]]] = {
    "images": (3, ()),
    "trainer": (60, ("--save_steps", "10")),
    "accelerate": (60, ("--save-every", "10")),
    "nano": (60, ("--save_interval=10",)),
}
"""Length, and more arguments: power is lost after the first checkpoint, long before the end."""
LOGGED = re.compile(r"^(\d{4}-\d\d-\d\dT[\d:.]+)Z (.*)")
"""A line of a pod's log, as the kubelet has it."""


class PodScript:
    """A script's run on pods, from outside."""

    def __init__(self, lab: Lab, script: Script, output: Path) -> None:
        self.lab, self.script, self.output = lab, script, output

    def train_to_a_checkpoint(self) -> None:
        length, more = LENGTHS[self.script.name]
        targets = self.lab.folder / "targets.yaml"
        self.lab.folder = self.script.make_run(self.lab.folder, length, *more)
        targets.rename(self.lab.folder / "targets.yaml")
        # It returns when the script has run for 20 s; that is too late for a short one.
        with self.lab.typed("run", "--on", "lab", "--nodes", str(NODES)) as typed:

            def has_saved() -> bool:
                assert typed.process.poll() in (None, 0), typed.output
                return any(self.output.glob(self.script.checkpoints))

            wait_for("a checkpoint", has_saved, START_SECONDS)

    def processes(self, pods: list[dict[str, Any]]) -> dict[int, float]:
        """Of these pods, and when each was started."""
        uids = [(self.lab.node_of(pod), pod["metadata"]["uid"]) for pod in pods]
        return started("", {pid for node, uid in uids for pid in node.pod_pids(uid)})

    def placed(self) -> list[dict[str, Any]]:
        return [pod for pod in self.lab.pods() if "nodeName" in pod["spec"]]

    def lose_a_machine(self) -> dict[str, float]:
        """Seconds from the loss of its power until the script runs again in all pods that are left,
        and to its first step after that. Those that the machine had, one or two, are replaced
        later."""
        assert len(self.processes(self.placed())) == NODES
        lost_node = self.lab.node_of(away_from_the_coordinator(self.lab))
        left = [pod for pod in self.placed() if pod["spec"]["nodeName"] != lost_node.name]
        before = self.processes(left)
        watch, struck = Stopwatch(), time.time()
        faults.pull_plug(lost_node)
        again = wait_for("the others", lambda: self._started_anew(left, before), RESTART_SECONDS)
        lost = watch.lost_seconds
        stepped = wait_for("a step", lambda: self._first_step(again), RESTART_SECONDS)
        return {
            "survivors": len(left),
            "met": round(self._met_after(struck) - struck, 2),
            "started": round(again - struck, 2),
            "stepped": round(stepped - struck, 2),
            "stolen_until_started": round(lost, 2),
        }

    def _met_after(self, struck: float) -> float:
        """When the survivors were together again, before they started anything."""
        records = self.output.parent.glob("generations/*.json")
        times = [seconds_of(json.loads(one.read_text())["began"]) for one in records]
        return min(at for at in times if at > struck)

    def _started_anew(self, left: list[dict[str, Any]], before: dict[int, float]) -> float | None:
        """When the last of the survivors was."""
        now = self.processes(left)
        is_whole = len(now) == len(before) and not now.keys() & before.keys()
        return max(now.values()) if is_whole else None

    def _first_step(self, since: float) -> float | None:
        """By the times that the kubelets have put on what pods print."""
        times = [
            seconds_of(f"{found[1][:26]}Z")
            for line in self._logs()
            if (found := LOGGED.match(line)) and self.script.step.search(found[2])
        ]
        return min((at for at in times if at > since), default=None)

    def _logs(self) -> list[str]:
        lines = []
        for pod in self.placed():
            path = f"/api/v1/namespaces/{self.lab.namespace}/pods/{pod['metadata']['name']}/log"
            with suppress(ApiError):  # it has not started, or its machine is gone
                lines += self.lab.cluster.api.text(path, timestamps="true").splitlines()
        return lines

    def finish(self) -> None:
        state = wait_for("the end", self._ended_as, END_SECONDS)
        said = self.lab.headway("logs", "--all").stdout
        assert state == "finished", said
        assert (self.output / self.script.model).exists(), said

    def _ended_as(self) -> str | None:
        state = str(self.lab.status()["state"])
        return state if state in ("finished", "failed", "stopped") else None


def told(script: Script, seconds: dict[str, float]) -> None:
    print(json.dumps({"name": "scripts-on-pods", "script": script.name, **seconds}))


def test_the_model_of_an_image_classifier_is_in_the_bucket(lab: Lab, bucket: Path) -> None:
    script = SCRIPTS["images"]
    run = PodScript(lab, script, bucket / "runs" / script.name / "output")
    run.train_to_a_checkpoint()
    saved = written(run.output, script)
    told(script, run.lose_a_machine())
    run.finish()
    weights = torch.load(io.BytesIO((run.output / script.model).read_bytes()))
    assert len(weights) > 1
    now = written(run.output, script)
    assert len(now) == LENGTHS["images"][0]
    assert saved.items() <= now.items(), "no epoch is trained again that was saved"


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "images"])
def test_a_script_continues_from_the_claim(name: str, lab: Lab) -> None:
    script = SCRIPTS[name]
    run = PodScript(lab, script, lab.shared / "runs" / name / "output")
    run.train_to_a_checkpoint()
    told(script, run.lose_a_machine())
    run.finish()
    assert script.resumed in lab.headway("logs", "--all").stdout


def written(output: Path, script: Script) -> dict[str, int]:
    """When each of its checkpoints was."""
    return {path.name: path.stat().st_mtime_ns for path in output.glob(script.checkpoints)}
