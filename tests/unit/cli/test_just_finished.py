"""Commands about a run on a target that has finished, while its last pods are still about to
exit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.clock import SystemClock
from headway.errors import Exit
from headway.http_server import JSON
from headway.kube.client import KubeClient
from headway.kube.names import INDEX, labels
from headway.launch.cluster_run import EXIT_SECONDS, ClusterRun
from headway.state.run_directory import RunDirectory
from support.clock import Patient
from support.fake_kube import READY, FakeKube, fake_kube
from support.in_process import Headway
from support.launchable import RUN, TARGET

POD, WORKER = "headway-it-coordinator-x", "headway-it-0-x"
JOB = "/apis/batch/v1/namespaces/ml/jobs/headway-it"
COMPLETE = {"type": "Complete", "status": "True"}


@pytest.fixture
def kube(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    (folder / "run.yaml").write_text(RUN)
    (folder / "targets.yaml").write_text(TARGET)
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    with fake_kube(folder) as kube:
        kube.job("it", ready=2)
        metadata = {"name": POD, "labels": labels("it", "coordinator")}
        content = {"metadata": metadata, "spec": {"containers": []}, "status": READY}
        kube.put(f"/api/v1/namespaces/ml/pods/{POD}", content)
        yield kube


def complete(kube: FakeKube) -> None:
    kube.objects[JOB]["status"] = {"conditions": [COMPLETE]}
    kube.objects.pop(f"/api/v1/namespaces/ml/pods/{POD}", None)


def tells(kube: FakeKube, state: str, is_over: bool) -> None:
    """The coordinator's page; `is_over`: whoever has read it finds a Job that has completed."""

    def page() -> tuple[str, bytes]:
        if is_over:
            complete(kube)
            kube.printed[WORKER] = {"worker": "the model is saved"}
        status: dict[str, Any] = {"status": {"step": 7, "state": state}, "events": [], "loss": None}
        return JSON, json.dumps(status).encode()

    kube.serve_pages({"/status": page})


def test_it_is_deleted(headway: Headway, kube: FakeKube) -> None:
    tells(kube, "finished", is_over=True)
    said = headway("delete", "it", "--on", "lab", "--yes")
    assert said.exit_code == 0, said.err
    assert "headway-it" not in kube.named("jobs")


def test_its_last_words_are_in_the_log(headway: Headway, kube: FakeKube) -> None:
    pod = {"name": WORKER, "labels": {**labels("it", "worker"), INDEX: "0"}}
    worker = {"metadata": pod, "spec": {"containers": []}, "status": READY}
    kube.put(f"/api/v1/namespaces/ml/pods/{WORKER}", worker)
    kube.printed[WORKER] = {"worker": "step 7"}
    tells(kube, "finished", is_over=True)
    assert headway("logs", "--on", "lab").out == "the model is saved\n"


def test_of_a_node_whose_pod_the_job_has_deleted_the_log_on_the_storage_is_shown(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    """A Job that is done deletes the pods that have not exited when the first has."""
    directory = RunDirectory.create(folder / "claim" / "runs" / "it", SystemClock())
    complete(kube)
    for node in (0, 1):
        log = directory.log(node, 0)
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"accuracy of {node}\n")
    pod = {"name": WORKER, "labels": {**labels("it", "worker"), INDEX: "1"}}
    worker = {"metadata": pod, "spec": {"containers": []}, "status": {"phase": "Succeeded"}}
    kube.put(f"/api/v1/namespaces/ml/pods/{WORKER}", worker)
    kube.printed[WORKER] = {"worker": "done"}
    assert headway("logs", "--on", "lab").out == "accuracy of 0\n"
    assert headway("logs", "--on", "lab", "--node", "1").out == "done\n"
    said = headway("logs", "--on", "lab", "--all").out.splitlines()
    assert said == ["node-1: done", "node-0.rank-0: accuracy of 0"]


def test_one_that_trains_is_not(headway: Headway, kube: FakeKube) -> None:
    tells(kube, "running", is_over=False)
    said = headway("delete", "it", "--on", "lab", "--yes")
    assert said.exit_code == Exit.STILL_RUNNING
    assert "run it is still running" in said.err


def test_its_job_is_waited_for_and_not_for_ever(kube: FakeKube) -> None:
    tells(kube, "finished", is_over=False)
    clock, said = Patient(), list[str]()
    run = ClusterRun(KubeClient.from_kubeconfig(None, "ml"), "it", "lab", clock)
    job = run.settled_end(said.append)
    assert job is not None
    assert run.job_status(job).state == "active", "whoever asked decides what that means"
    assert EXIT_SECONDS <= clock.passed < EXIT_SECONDS + 5
    assert said == ["run it has finished: waiting for its pods to exit"]

    def meanwhile() -> None:
        if clock.passed > 3:
            complete(kube)

    clock = Patient(meanwhile)
    run = ClusterRun(KubeClient.from_kubeconfig(None, "ml"), "it", "lab", clock)
    job = run.settled_end(said.append)
    assert job is not None
    assert run.job_status(job).state == "finished"
    assert clock.passed < 10
