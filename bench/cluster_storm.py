"""`make cluster-storm FAULTS=30 SEED=1`: a run of three workers on the test cluster, and a fault of
any kind every two minutes. The ledger must be exact, and 95 % of the time must go into steps that
count.

Two figures: the run's own, as `headway status` shows it, and one computed only from the times of
its steps. Where three workers share two cores, fewer workers take longer for a step; only the
second figure shows that.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from cluster_tool import faults
from cluster_tool.node import Node
from headway.clock import seconds_of
from support.lab import Lab, borrowed_lab

FAULTS = int(os.environ.get("FAULTS", "30"))
SEED = int(os.environ.get("SEED", "1"))
EVERY_SECONDS = float(os.environ.get("EVERY_SECONDS", "120"))
UNDO_SECONDS = min(60.0, EVERY_SECONDS / 2)
TARGET = 0.95
NODES = 3
CALM_SECONDS = 180.0
NOTICE_SECONDS = 30.0
RUN_FILE = """\
version: 1
name: it
model: {type: gpt2, config: {n_layer: 4, n_head: 4, n_embd: 128, n_positions: 128}}
data:
  train: {sources: [text.txt], tokenizer: {train: {vocab: 1000}}}
  sequence_length: 128
batch: {global: 12, micro: 2}
train_for: 1000000 steps
schedule: {type: constant, warmup: 5 steps}
precision: fp32
threads: 1
track: []
evaluation: {every: 1000000 steps}
checkpoint: {every: 5min}
"""


class Storm:
    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.chance = random.Random(seed)
        self.struck: Counter[str] = Counter()
        self.kind = ""
        """Of the newest."""
        self.instead: Counter[str] = Counter()
        """Of these, another fault took the place of: pods were not where it needs them."""
        self.kinds: dict[str, Callable[[], Callable[[], None]]] = {
            "a machine without power": self._pull_plug,
            "a machine taken back": self._reclaim,
            "a machine cut off": self._cut,
            "a worker killed": self._kill_worker,
            "a pod killed": self._kill_pod,
            "a pod deleted": self._delete_pod,
            "a pod evicted": self._evict,
            "the coordinator killed": self._kill_coordinator,
            "the API server away": self._stop_api,
            "slow DNS": self._slow_dns,
            "scaled down and up": self._scale,
        }

    def blow(self, count: int) -> None:
        plan: list[str] = []
        while len(plan) < count:
            plan += self.chance.sample(sorted(self.kinds), len(self.kinds))
        for kind in plan[:count]:
            began = time.monotonic()
            step = self.lab.step()
            self.struck[kind] += 1
            say(f"step {step}: fault {self.struck.total()}, {kind}")
            self.kind = kind
            undo = self.kinds[kind]()
            self.lab.wait_for_step(step + 2, CALM_SECONDS)
            time.sleep(max(0.0, began + UNDO_SECONDS - time.monotonic()))
            undo()
            self.lab.wait_for_workers(NODES, CALM_SECONDS)
            time.sleep(max(0.0, began + EVERY_SECONDS - time.monotonic()))

    def _instead(self, strike: Callable[[], Callable[[], None]]) -> Callable[[], None]:
        self.instead[self.kind] += 1
        return strike()

    # What is returned undoes it.

    def _pull_plug(self) -> Callable[[], None]:
        node = self._machine()
        if node is None:
            return self._instead(self._kill_pod)
        faults.pull_plug(node)
        return lambda: faults.put_back(node, self.lab.cluster.api)

    def _reclaim(self) -> Callable[[], None]:
        """The coordinator is never on such a machine."""
        keeper = self.lab.node_of(self.lab.coordinator()).name
        others = [node for node in self._machines() if node.name != keeper]
        if not others:
            return self._instead(self._evict)
        node, api = self.chance.choice(others), self.lab.cluster.api
        faults.reclaim(node, api, NOTICE_SECONDS)

        def undo() -> None:
            faults.uncordon(node, api)
            faults.put_back(node, api)

        return undo

    def _cut(self) -> Callable[[], None]:
        node = self._machine()
        if node is None:
            return self._instead(self._kill_worker)
        faults.cut_network(node)
        return lambda: faults.mend_network(node)

    def _kill_worker(self) -> Callable[[], None]:
        pids = sorted(pid for pids in self.lab.training_pids().values() for pid in pids)
        os.kill(self.chance.choice(pids), signal.SIGKILL)
        return nothing

    def _kill_pod(self) -> Callable[[], None]:
        self._kill_all_of(self._pod())
        return nothing

    def _kill_coordinator(self) -> Callable[[], None]:
        self._kill_all_of(self.lab.coordinator())
        return nothing

    def _kill_all_of(self, pod: dict[str, Any]) -> None:
        for pid in self.lab.node_of(pod).pod_pids(pod["metadata"]["uid"]):
            os.kill(pid, signal.SIGKILL)

    def _delete_pod(self) -> Callable[[], None]:
        name = self._pod()["metadata"]["name"]
        self.lab.cluster.api.delete(f"/api/v1/namespaces/{self.lab.namespace}/pods/{name}")
        return nothing

    def _evict(self) -> Callable[[], None]:
        name = self._pod()["metadata"]["name"]
        faults.evict(self.lab.cluster.api, self.lab.namespace, name)
        return nothing

    def _stop_api(self) -> Callable[[], None]:
        faults.stop_api(self.lab.cluster.control_plane)
        return lambda: faults.start_api(self.lab.cluster.control_plane, self.lab.cluster.api)

    def _slow_dns(self) -> Callable[[], None]:
        faults.slow_dns(self.lab.cluster.dns, 2.0)
        return lambda: faults.quick_dns(self.lab.cluster.dns)

    def _scale(self) -> Callable[[], None]:
        self.lab.headway("scale", "--nodes", str(NODES - 1))

        def undo() -> None:
            self.lab.headway("scale", "--nodes", str(NODES))

        return undo

    def _pod(self) -> dict[str, Any]:
        pods = [pod for pod in self.lab.pods() if pod["status"]["phase"] == "Running"]
        return self.chance.choice(sorted(pods, key=lambda pod: str(pod["metadata"]["name"])))

    def _machines(self) -> list[Node]:
        """With something of the run on it."""
        pods = [*self.lab.pods(), *self.lab.pods("coordinator")]
        names = {pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]}
        return [self.lab.cluster.node(name) for name in sorted(names)]

    def _machine(self) -> Node | None:
        """Any machine, unless all workers are on it: then the run would return to a checkpoint,
        which another test covers. None if there is no other."""
        workers = self.lab.machines_of_workers()
        others = [node for node in self._machines() if workers.difference({node.name})]
        return self.chance.choice(others) if others else None


def nothing() -> None:
    """There is nothing to undo."""


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="headway-cluster-storm-") as scratch,
        borrowed_lab(Path(scratch)) as lab,
    ):
        lab.write_run(RUN_FILE)
        lab.headway("run", "--on", "lab", "--nodes", str(NODES))
        lab.wait_for_workers(NODES)
        storm = Storm(lab, SEED)
        storm.blow(FAULTS)
        lab.headway("stop", seconds=450)
        lab.require_exact()
        own = lab.status()["goodput"]
        events = Counter(event["event"] for event in lab.directory().history())
        found = by_intervals(lab)
    line = {
        "name": "cluster-storm",
        "figure": own["ratio"],
        "target": TARGET,
        "pass": own["ratio"] >= TARGET,
        "spread": {
            "seed": SEED,
            "every_seconds": EVERY_SECONDS,
            "faults": dict(storm.struck),
            "replaced_by_another": dict(storm.instead),
            "own": own,
            "by_intervals": found,
            "events": dict(events),
        },
    }
    print(json.dumps(line))
    return 0


def by_intervals(lab: Lab) -> dict[str, Any]:
    """From the times of steps alone, and the longest pauses of all."""
    steps = lab.directory().steps()
    launched = seconds_of(lab.directory().history()[0]["time"])
    times = [seconds_of(line["time"]) for line in steps]
    intervals = [after - before for before, after in pairwise(times)]
    usual = statistics.median(intervals)
    longest = sorted(zip(intervals, steps[1:], strict=True), key=lambda one: -one[0])[:10]
    return {
        "ratio": round(len(times) * usual / (times[-1] - launched), 4),
        "total_seconds": round(times[-1] - launched, 1),
        "steps": len(times),
        "usual_step_seconds": round(usual, 3),
        "start_seconds": round(times[0] - launched, 1),
        "longest": [f"{seconds:.1f} s before step {line['step']}" for seconds, line in longest],
    }


BEGAN = time.monotonic()


def say(words: str) -> None:
    print(f"{time.monotonic() - BEGAN:7.1f} s  {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
