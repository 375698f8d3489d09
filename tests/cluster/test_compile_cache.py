"""Compiled once, on the test cluster: a pod that replaces another compiles nothing."""

from __future__ import annotations

from typing import Any

import pytest

from support.compiler import give_compiler
from support.lab import Lab
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

COMPILE_SECONDS = 900.0
RUN_FILE = """\
version: 1
name: it
model: {type: gpt2, config: {n_layer: 1, n_head: 2, n_embd: 32, n_positions: 32}}
data:
  train: {sources: [text.txt], tokenizer: {train: {vocab: 400}}}
  sequence_length: 16
batch: {global: 14, micro: 2}
train_for: 100000 steps
memory: {compile: true}
precision: fp32
threads: 1
seed: 3
track: []
evaluation: {every: 1000000 steps}
checkpoint: {every: 20s}
"""


@pytest.mark.trap(15)
@pytest.mark.trap(16)
@pytest.mark.long("a compilation takes minutes in a pod")
def test_a_pod_that_comes_later_compiles_nothing(lab: Lab) -> None:
    give_compiler(lab)
    # Ten probes of vector instructions would take longer than the kernels themselves.
    env = {**lab.target()["pod"]["env"], "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    resources = {"cpu": "600m", "memory": "2Gi"}
    lab.change_target({"env": env, "resources": resources})
    lab.write_run(RUN_FILE)
    lab.headway("run", "--on", "lab", "--nodes", "2", seconds=COMPILE_SECONDS)
    both = counted(lab, {0, 1})
    assert all(node["compiled"] > 0 for node in both), both
    store = lab.directory().store
    wait_for("the archive", lambda: any(True for _ in store.names("compiled")), COMPILE_SECONDS)

    # A machine is taken away: the pod that replaces its pod compiles nothing.
    before = len(lab.directory().events.read()[0])
    (pod, *_) = lab.pods()
    lab.cluster.api.delete(f"/api/v1/namespaces/{lab.namespace}/pods/{pod['metadata']['name']}")
    index = int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])
    (new,) = counted(lab, {index}, before)
    assert (new["compiled"], new["libraries"]) == (0, 0), new
    assert new["from_cache"] > 0, new
    status = lab.headway("status").stdout
    assert "graphs from the cache, 0 compiled" in status, status
    lab.headway("stop")
    lab.require_exact()


def counted(lab: Lab, nodes: set[int], after: int = 0) -> list[dict[str, Any]]:
    """What these nodes have counted, in the order of their indices."""

    def found() -> dict[int, dict[str, Any]]:
        events = lab.directory().events.read()[0][after:]
        return {one["node"]: one for one in events if one["event"] == "compiled"}

    wait_for(f"counters of nodes {nodes}", lambda: nodes <= found().keys(), COMPILE_SECONDS)
    print(found())
    return [found()[node] for node in sorted(nodes)]
