"""The pod that serves a claim: where it may be, who may reach it, and how long it is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.errors import Exit, RunFailed
from headway.http_server import Answer, HttpRequest
from headway.kube.api_errors import RequestRefused
from headway.kube.claim_job import storage_objects
from headway.kube.client import KubeClient
from headway.launch.claim_pod import ANSWER_SECONDS, START_SECONDS, ClaimPod
from headway.spec.target_file import Target
from support.clock import Patient
from support.fake_kube import READY, FakeKube, fake_kube

TARGET = Target.model_validate(
    {
        "kube": {"namespace": "ml"},
        "image": "registry.example/headway@sha256:" + "0" * 64,
        "storage": {"claim": "fs"},
        "spot_label": {"karpenter.sh/capacity-type": "spot"},
        "coordinator": {"node_selector": {"pool": "small"}},
        "pod": {"node_selector": {"pool": "gpu"}},
    }
)


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with fake_kube(tmp_path) as kube:
        yield kube


def pending(reason: str, message: str = "") -> dict[str, Any]:
    container = {
        "name": "storage",
        "image": "it",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": {"reason": reason, "message": message}},
    }
    return {"phase": "Pending", "containerStatuses": [container]}


def started(clock: Patient, said: list[str]) -> ClaimPod:
    return ClaimPod(KubeClient.from_kubeconfig(None, "ml"), TARGET, clock, said.append).start()


def test_a_long_image_pull_is_waited_for_and_reported(kube: FakeKube) -> None:
    kube.storage_pod = pending("ContainerCreating")

    def meanwhile() -> None:
        if clock.passed > START_SECONDS - 60:
            kube.objects["/api/v1/namespaces/ml/pods/serving"]["status"] = READY

    clock, said = Patient(meanwhile), list[str]()
    started(clock, said).end()
    assert said == ["the pod that serves the claim: pulling the image or mounting volumes"]
    assert kube.named("jobs") == []


def test_but_not_forever(kube: FakeKube) -> None:
    kube.storage_pod = pending("ContainerCreating")
    clock = Patient()
    with pytest.raises(RunFailed) as caught:
        started(clock, [])
    assert str(caught.value) == (
        "the pod that serves claim fs did not start within 15 min: pulling the image or mounting "
        "volumes\nhint: kubectl get events -n ml"
    )
    assert START_SECONDS < clock.passed < 1.1 * START_SECONDS
    assert kube.named("jobs") == []


def test_who_is_in_a_hurry_waits_less(kube: FakeKube) -> None:
    kube.storage_pod = pending("ContainerCreating")
    clock = Patient()
    client = KubeClient.from_kubeconfig(None, "ml")
    with pytest.raises(RunFailed, match=r"did not start within 0\.5 min: "):
        ClaimPod(client, TARGET, clock, [].append, start_seconds=30.0).start()
    assert 30.0 < clock.passed < 35.0


def test_files_of_another_user_are_told_with_the_users_of_pods(kube: FakeKube) -> None:
    pod = started(Patient(), [])

    def refused(_: HttpRequest) -> Answer:
        raise PermissionError("[Errno 13] Permission denied: '/headway/storage/runs'")

    kube.serve_pages({}, {"files": refused})
    with pytest.raises(RequestRefused, match="Permission denied") as caught:
        pod.ask("/files/runs/it/run.json", "PUT", b"{}", {})
    assert "chown 1000:1000" in str(caught.value.hint)
    pod.end()


def test_what_is_hopeless_is_not_waited_for(kube: FakeKube) -> None:
    kube.storage_pod = pending("ErrImagePull", "no such image")
    clock = Patient()
    with pytest.raises(RunFailed) as caught:
        started(clock, [])
    assert caught.value.message == (
        "the pod that serves claim fs cannot start: the image cannot be pulled: no such image"
    )
    assert clock.passed < 5


def test_an_image_with_another_headway_is_not_waited_for(kube: FakeKube) -> None:
    words = "error: this image has Headway 1, and the pod was made by Headway 2\nhint: use 2\n"
    ended = pending("")["containerStatuses"][0]
    ended["state"] = {"terminated": {"exitCode": int(Exit.BAD_INPUT), "message": words}}
    kube.storage_pod = {"phase": "Failed", "containerStatuses": [ended]}
    clock = Patient()
    with pytest.raises(RunFailed) as caught:
        started(clock, [])
    assert str(caught.value) == (
        "the pod that serves claim fs cannot start: this image has Headway 1, and the pod was made "
        "by Headway 2\nhint: use 2"
    )
    assert kube.named("jobs") == []


def test_one_that_fails_again_and_again_is_not_waited_for(kube: FakeKube) -> None:
    ended = pending("")["containerStatuses"][0]
    ended["state"] = {"terminated": {"exitCode": 126, "message": "sh: headway: cannot execute"}}
    kube.storage_pod = {"phase": "Failed", "containerStatuses": [ended]}
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}

    def meanwhile() -> None:
        if clock.passed > 30:
            for path, found in kube.objects.items():
                if "/jobs/" in path:
                    found["status"] = {"conditions": [failed]}

    clock = Patient(meanwhile)
    with pytest.raises(RunFailed) as caught:
        started(clock, [])
    assert caught.value.message == (
        "the pod that serves claim fs cannot start: sh: headway: cannot execute"
    )
    assert clock.passed < 60


def test_an_image_for_another_processor_is_not_waited_for(kube: FakeKube) -> None:
    ended = pending("")["containerStatuses"][0]
    said = "exec /usr/bin/headway: exec format error\n"
    ended["state"] = {"terminated": {"exitCode": 255, "message": said}}
    kube.storage_pod = {"phase": "Failed", "containerStatuses": [ended]}
    clock = Patient()
    with pytest.raises(RunFailed) as caught:
        started(clock, [])
    assert "cannot start: image " in caught.value.message
    assert "another processor architecture" in caught.value.message
    assert "architecture: amd64" in (caught.value.hint or "")
    assert clock.passed < 5


def test_files_go_by_one_connection_each_thread(kube: FakeKube, tmp_path: Path) -> None:
    pod = started(Patient(), [])
    for number in range(20):
        pod.ask(f"/files/{number}", "PUT", b"content", {})
    assert len(list((tmp_path / "claim").iterdir())) == 20
    assert kube.port_forward.num_opened == 2, "/healthz has one of its own: it shows no key"
    pod.end()


def test_one_that_is_ready_and_cannot_be_reached_is_given_up(kube: FakeKube) -> None:
    kube.port_forward.refusal = (403, "pods is forbidden")
    kube.proxy_error = (503, "error trying to reach service: i/o timeout")
    clock = Patient()
    with pytest.raises(RunFailed) as caught:
        started(clock, [])
    assert str(caught.value) == (
        "claim fs is served, but cannot be reached from here: pod serving cannot be reached: "
        "port-forward: pods is forbidden; proxy: error trying to reach service: i/o timeout\n"
        "hint: ask the administrator of the cluster which of the two should work"
    )
    assert ANSWER_SECONDS < clock.passed < ANSWER_SECONDS + 5
    assert kube.named("jobs") == []


def test_it_waits_in_the_targets_queue() -> None:
    queued = TARGET.model_copy(update={"queue": "research", "priority": "urgent"})
    job, *_ = storage_objects("abc", queued, "key")
    labelled = {"kueue.x-k8s.io/queue-name": "research", "kueue.x-k8s.io/priority-class": "urgent"}
    assert labelled.items() <= job["metadata"]["labels"].items()


def test_it_is_kept_off_spot_and_from_strangers_as_the_coordinator_is() -> None:
    job, secret, policy = storage_objects("abc", TARGET, "key")
    pod = job["spec"]["template"]
    assert pod["spec"]["nodeSelector"] == {"pool": "small"}
    assert {one["tolerationSeconds"] for one in pod["spec"]["tolerations"]} == {0}
    node = pod["spec"]["affinity"]["nodeAffinity"]
    (term,) = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    spot = {"key": "karpenter.sh/capacity-type", "operator": "NotIn", "values": ["spot"]}
    assert spot in term["matchExpressions"]
    assert secret["kind"] == "Secret"
    assert (policy["kind"], policy["metadata"]["name"]) == ("NetworkPolicy", "headway-storage-abc")
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert selected.items() <= pod["metadata"]["labels"].items()
    assert policy["spec"]["ingress"][-1] == {"ports": [{"protocol": "TCP", "port": 7461}]}
