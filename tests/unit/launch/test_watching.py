"""A run on a cluster whose pages cannot be reached from here: it is left alone, with words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.errors import Exit, RunFailed
from headway.http_server import JSON
from headway.kube.client import KubeClient
from headway.kube.names import labels
from headway.launch.cluster_run import ClusterRun
from headway.launch.training_wait import (
    SCRIPT_SECONDS,
    SILENT_SECONDS,
    NotYetTraining,
    PagesUnreachable,
    status_when_training,
)
from support.clock import Patient
from support.fake_kube import READY, FakeKube, fake_kube
from support.fake_port_forward import REFUSED

POD = "headway-it-coordinator-x"
STARTING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with fake_kube(tmp_path) as kube:
        kube.job("it", ready=2)
        put_coordinator(kube, READY)
        yield kube


def put_coordinator(kube: FakeKube, status: dict[str, Any], pod: str = POD) -> None:
    metadata = {"name": pod, "labels": labels("it", "coordinator")}
    content = {"metadata": metadata, "spec": {"containers": []}, "status": status}
    kube.put(f"/api/v1/namespaces/ml/pods/{pod}", content)


def cut_off(kube: FakeKube) -> None:
    kube.port_forward.refusal = (502, "dial tcp 10.0.0.5:10250: i/o timeout")
    kube.proxy_error = (503, "error trying to reach service: i/o timeout")


def mend(kube: FakeKube) -> None:
    kube.port_forward.refusal = kube.proxy_error = None


def trains(kube: FakeKube) -> None:
    status = {"status": {"step": 7, "state": "running"}, "events": [], "loss": None}
    kube.serve_pages({"/status": lambda: (JSON, json.dumps(status).encode())})


def watched(kube: FakeKube, clock: Patient, said: list[str]) -> dict[str, Any]:
    run = ClusterRun(KubeClient.from_kubeconfig(None, "ml"), "it", "lab", clock)
    return status_when_training(run, said.append)


def test_a_run_that_cannot_be_watched_is_no_failed_run(kube: FakeKube) -> None:
    cut_off(kube)
    clock, said = Patient(), list[str]()
    with pytest.raises(PagesUnreachable) as caught:
        watched(kube, clock, said)
    reasons = (
        f"pod {POD} cannot be reached: port-forward: dial tcp 10.0.0.5:10250: i/o timeout; "
        "proxy: error trying to reach service: i/o timeout"
    )
    assert str(caught.value) == (
        "run it continues (2 of 2 pods are ready), but cannot be watched from here: "
        f"{reasons}\nhint: make this work first: kubectl port-forward -n ml "
        "replicaset/headway-it-coordinator 7461"
    )
    assert not isinstance(caught.value, RunFailed), "else its objects are deleted"
    assert caught.value.exit_code == Exit.STILL_RUNNING
    assert SILENT_SECONDS <= clock.passed < SILENT_SECONDS + 5
    assert said == [f"coordinator: {reasons}"]
    assert kube.named("jobs") == ["headway-it"]


def test_without_the_right_to_reach_pods_the_run_continues(kube: FakeKube) -> None:
    kube.forbidden.add(f"/api/v1/namespaces/ml/pods/{POD}/portforward")
    kube.forbidden.add(f"/api/v1/namespaces/ml/pods/{POD}:")
    with pytest.raises(PagesUnreachable, match=f"pod {POD} cannot be reached: .*") as caught:
        watched(kube, Patient(), [])
    assert caught.value.hint == (
        "ask the administrator of the namespace for pods/portforward: get and create"
    )
    assert caught.value.exit_code == Exit.STILL_RUNNING
    assert kube.named("jobs") == ["headway-it"]


def test_without_the_right_to_reach_pods_a_run_is_stopped(kube: FakeKube) -> None:
    kube.forbidden.add(f"/api/v1/namespaces/ml/pods/{POD}/portforward")
    kube.forbidden.add(f"/api/v1/namespaces/ml/pods/{POD}:")
    run = ClusterRun(KubeClient.from_kubeconfig(None, "ml"), "it", "lab", Patient())
    assert run.stop(lambda _: None) is None


def test_a_network_that_is_back_in_time_is_no_matter(kube: FakeKube) -> None:
    cut_off(kube)
    trains(kube)

    def meanwhile() -> None:
        if clock.passed > SILENT_SECONDS - 5:
            mend(kube)

    clock = Patient(meanwhile)
    assert watched(kube, clock, [])["step"] == 7


def test_a_coordinator_that_still_starts_is_waited_for(kube: FakeKube) -> None:
    put_coordinator(kube, STARTING)
    cut_off(kube)
    trains(kube)

    def meanwhile() -> None:
        if clock.passed > 2 * SILENT_SECONDS:
            mend(kube)

    clock = Patient(meanwhile)
    assert watched(kube, clock, [])["step"] == 7


def test_one_that_does_not_listen_yet_is_starting(kube: FakeKube) -> None:
    kube.port_forward.error = REFUSED
    trains(kube)

    def meanwhile() -> None:
        if clock.passed > 5:
            kube.port_forward.error = ""

    clock, said = Patient(meanwhile), list[str]()
    assert watched(kube, clock, said)["step"] == 7
    assert said == ["2 of 2 pods are ready; the coordinator is starting"]


def test_the_wait_for_training_may_have_an_end(kube: FakeKube) -> None:
    """All pods are up: what they wait for is each other."""
    status = {"status": {"step": 0, "state": "starting"}, "events": [], "loss": None}
    kube.serve_pages({"/status": lambda: (JSON, json.dumps(status).encode())})
    clock = Patient()
    run = ClusterRun(KubeClient.from_kubeconfig(None, "ml"), "it", "lab", clock)
    with pytest.raises(NotYetTraining) as caught:
        status_when_training(run, [].append, until=60.0)
    assert caught.value.message == "2 of 2 pods are ready; workers are starting"
    assert "TCP ports 7460 and 7461" in str(caught.value.hint)
    assert "in both directions" in str(caught.value.hint)
    assert 60.0 < clock.passed < 65.0


def test_a_coordinator_that_was_replaced_is_found(kube: FakeKube) -> None:
    trains(kube)
    run = ClusterRun(KubeClient.from_kubeconfig(None, "ml"), "it", "lab", Patient())
    assert run.known() is not None
    del kube.objects[f"/api/v1/namespaces/ml/pods/{POD}"]
    put_coordinator(kube, READY, pod="another")
    assert run.known() is not None


def test_a_script_is_waited_for_until_it_has_run_for_a_while(kube: FakeKube) -> None:
    """It may never tell of a step."""
    status = {"step": 0, "state": "running", "is_script": True}
    script_is(kube, status)
    clock, said = Patient(), list[str]()
    assert watched(kube, clock, said) == status
    assert SCRIPT_SECONDS <= clock.passed < SCRIPT_SECONDS + 5
    assert said == ["2 of 2 pods are ready; the script has started"]


def test_a_script_that_tells_of_a_step_is_not(kube: FakeKube) -> None:
    script_is(kube, {"step": 1, "state": "running", "is_script": True})
    clock = Patient()
    watched(kube, clock, [])
    assert clock.passed < 1


def test_a_mistake_in_the_first_seconds_of_a_script_is_the_commands_error(kube: FakeKube) -> None:
    def meanwhile() -> None:
        if clock.passed > SCRIPT_SECONDS / 2:
            words = "ModuleNotFoundError: No module named 'tim'"
            script_is(kube, {"step": 0, "state": "failed", "is_script": True, "failure": words})

    script_is(kube, {"step": 0, "state": "running", "is_script": True})
    clock = Patient(meanwhile)
    with pytest.raises(RunFailed, match="No module named 'tim'") as caught:
        watched(kube, clock, [])
    assert caught.value.hint == "headway logs it"


def script_is(kube: FakeKube, status: dict[str, Any]) -> None:
    page = json.dumps({"status": status, "events": [], "loss": None}).encode()
    kube.serve_pages({"/status": lambda: (JSON, page)})
