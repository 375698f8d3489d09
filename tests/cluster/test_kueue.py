"""A run in a queue of a real Kueue: it waits, is admitted, changes its size, is preempted and comes
back. Its coordinator is in no queue, though the namespace has one for all that names none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster_tool.cluster import Cluster
from cluster_tool.kueue import Kueue, kueue
from headway.kube.check_lines import POLICY, RUN
from support.lab import Lab
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.long("starts Kueue, which needs Go or a ready-made program: make test-kueue"),
]

QUEUE = "default"
"""Kueue puts Jobs and pods that name no queue into the one of this name, if there is one."""
CPU, MEMORY = "1400m", "8Gi"
"""Three workers, or two and the pod that serves the claim."""
PATIENCE_SECONDS = 240.0


@pytest.fixture
def queues(own_cluster: Cluster) -> Iterator[Kueue]:
    with kueue(own_cluster) as made:
        yield made


@pytest.fixture
def strict_queues(own_cluster: Cluster) -> Iterator[Kueue]:
    """It also suspends what names no queue."""
    with kueue(own_cluster, manages_all=True) as made:
        yield made


def test_queued_admitted_scaled_preempted_and_back(queues: Kueue, lab: Lab) -> None:
    queues.add_queue(lab.namespace, QUEUE, CPU, MEMORY)
    lab.change_target(queue=QUEUE, priority="low")
    with _in_queue(lab, "before", "high"):
        command = lab.typed("run", "--on", "lab", "--nodes", "2")
        command.wait_for(f"in queue {QUEUE}", PATIENCE_SECONDS)
        coordinator = _coordinator(lab)
        assert lab.pods() == []
        assert "queued" in lab.headway("list", "--on", "lab").stdout
    assert command.end(PATIENCE_SECONDS) == 0, command.output
    lab.wait_for_workers(2)

    before = {pod["metadata"]["uid"] for pod in lab.pods()}
    lab.headway("scale", "--nodes", "3")
    lab.wait_for_workers(3, PATIENCE_SECONDS)
    assert before < {pod["metadata"]["uid"] for pod in lab.pods()}, "nobody was restarted"

    step = lab.step()
    with _in_queue(lab, "urgent", "high"):
        wait_for("preemption", lambda: lab.pods() == [], PATIENCE_SECONDS)
        preempted = lab.status()
        assert preempted["cluster"]["state"] == "queued"
        assert preempted["waiting"] == [f"in queue {QUEUE}"], preempted
        assert _coordinator(lab) == coordinator, "it waits for the workers"
        assert lab.step() >= step
    lab.wait_for_workers(3, PATIENCE_SECONDS)
    lab.wait_for_step(lab.step() + 5, PATIENCE_SECONDS)
    assert _coordinator(lab) == coordinator

    lab.headway("stop")
    wait_for("the coordinator to end", lambda: lab.pods("coordinator") == [], PATIENCE_SECONDS)
    assert lab.status()["cluster"]["state"] == "suspended"
    lab.headway("resume")
    lab.wait_for_workers(3, PATIENCE_SECONDS)
    lab.headway("stop")
    lab.require_exact()
    lab.headway("delete", "it", "--yes")
    wait_for("nothing to be left", lambda: lab.objects() == [], PATIENCE_SECONDS)
    wait_for("no Workload", lambda: queues.workloads(lab.namespace) == [], PATIENCE_SECONDS)


def test_where_everything_has_to_be_in_a_queue(strict_queues: Kueue, lab: Lab) -> None:
    strict_queues.add_queue(lab.namespace, QUEUE, CPU, MEMORY)
    said = lab.headway("run", "--on", "lab", "--nodes", "2", expect=2).stderr
    assert f"into Kueue's queue {QUEUE}, and target lab names no queue" in said
    assert "jobs/headway-it" not in lab.objects()
    lab.change_target(queue=QUEUE)
    lab.headway("run", "--on", "lab", "--nodes", "2")
    _coordinator(lab)
    lab.headway("stop")
    lab.require_exact()


def test_a_check_of_the_target_is_in_the_queue(queues: Kueue, lab: Lab) -> None:
    lab.change_target(queue="nobodys")
    assert _line(lab, 4, POLICY)["evidence"].startswith("Kueue has no LocalQueue nobodys")
    queues.add_queue(lab.namespace, QUEUE, CPU, MEMORY)
    lab.change_target(queue=QUEUE, priority="low")
    assert _line(lab, 0, RUN, "3min")["outcome"] in ("passed", "warned")
    wait_for("no Workload", lambda: queues.workloads(lab.namespace) == [], PATIENCE_SECONDS)
    with _in_queue(lab, "before", "high"):
        full = _line(lab, 4, RUN)
    assert f"in queue {QUEUE}" in full["evidence"]
    wait_for("nothing to be left", lambda: lab.objects() == [], PATIENCE_SECONDS)


def _line(lab: Lab, expect: int, name: str, wait: str = "30s") -> dict[str, Any]:
    """A line of a check of the target."""
    said = lab.headway("target", "check", "lab", "--json", "--wait", wait, expect=expect).stdout
    lines: list[dict[str, Any]] = json.loads(said)["lines"]
    return next(line for line in lines if line["name"] == name)


def test_a_job_in_the_coordinators_place_would_stay_suspended(queues: Kueue, lab: Lab) -> None:
    """Why the coordinator is a ReplicaSet. If this fails, Kueue has learned to resume such Jobs."""
    queues.add_queue(lab.namespace, QUEUE, CPU, MEMORY)
    jobs = f"/apis/batch/v1/namespaces/{lab.namespace}/jobs"

    def is_suspended(name: str) -> bool:
        return bool(lab.cluster.api.get(f"{jobs}/{name}")["spec"].get("suspend"))

    with _in_queue(lab, "workers", "low") as workers:
        wait_for("admission", lambda: not is_suspended("workers"))
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "workers"}
        owner |= {"uid": workers["metadata"]["uid"], "controller": True}
        child = _job("coordinator", {}, [owner])
        made = lab.cluster.api.create(jobs, child)
        assert "kueue.x-k8s.io/queue-name" not in made["metadata"]["labels"]
        assert not made["spec"]["suspend"]
        with _in_queue(lab, "urgent", "high"):
            wait_for("preemption", lambda: is_suspended("workers"))
            wait_for("the child's suspension", lambda: is_suspended("coordinator"))
        wait_for("admission", lambda: not is_suspended("workers"))
        # An hour shows no more: nothing in Kueue resumes it.
        with pytest.raises(AssertionError):
            wait_for("the child's resumption", lambda: not is_suspended("coordinator"), 20)


def _coordinator(lab: Lab) -> str:
    """Its pod, which is up and in no queue."""

    def found() -> dict[str, Any] | None:
        pods = lab.pods("coordinator")
        return pods[0] if [pod["status"]["phase"] for pod in pods] == ["Running"] else None

    pod = wait_for("the coordinator", found, PATIENCE_SECONDS)
    assert not [key for key in pod["metadata"]["labels"] if "kueue" in key]
    return str(pod["metadata"]["name"])


@contextmanager
def _in_queue(lab: Lab, name: str, priority: str) -> Iterator[dict[str, Any]]:
    """A Job that takes most of the quota. It has no pods that run: policy rejects them."""
    jobs = f"/apis/batch/v1/namespaces/{lab.namespace}/jobs"
    labels = {"kueue.x-k8s.io/queue-name": QUEUE, "kueue.x-k8s.io/priority-class": priority}
    yield lab.cluster.api.create(jobs, _job(name, labels, []))
    lab.cluster.api.delete(f"{jobs}/{name}", propagationPolicy="Background")


def _job(name: str, labels: dict[str, str], owners: list[dict[str, Any]]) -> dict[str, Any]:
    requests = {"cpu": "1", "memory": "64Mi"}
    container = {"name": "main", "image": "none", "resources": {"requests": requests}}
    metadata = {"name": name, "labels": {"for": "test", **labels}, "ownerReferences": owners}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {"metadata": metadata, "spec": {"template": template}}
