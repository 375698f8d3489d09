"""`headway target check` shows its whole table, whatever the API server does not answer; nothing is
left of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.kube.check_lines import (
    IMAGE,
    LOGIN,
    MACHINES,
    NAMES_IN_ORDER,
    POLICY,
    QUOTA,
    STORAGE,
    YOUR_RIGHTS,
    CheckLine,
)
from headway.kube.client import KubeClient
from headway.kube.probe_objects import probe_objects, probe_run
from headway.launch.probe_pods import ProbePods
from headway.launch.target_check import checked_target
from headway.launch.target_look import TargetLook, look_at
from headway.spec.target_file import Target
from support.clock import Patient
from support.fake_kube import FakeKube, fake_kube

DIGEST = "0" * 64
TARGET = Target.model_validate(
    {
        "kube": {"namespace": "ml"},
        "image": f"registry.example/headway@sha256:{DIGEST}",
        "storage": {"claim": "shared"},
        "pod": {"resources": {"cpu": "2", "memory": "4Gi"}},
        "queue": "team",
    }
)
PODS = "/api/v1/namespaces/ml/pods"
JOBS = "/apis/batch/v1/namespaces/ml/jobs"


@pytest.fixture
def kube(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
    with fake_kube(folder) as kube:
        kube.others = ("nodes",)
        yield kube


def checked(said: list[str] | None = None) -> dict[str, CheckLine]:
    say = (said if said is not None else []).append
    kube = KubeClient.from_kubeconfig(None, "ml")
    lines = checked_target(kube, "lab", TARGET, 3.0, 300.0, Patient(), say)
    assert [line.name for line in lines] == list(NAMES_IN_ORDER)
    return {line.name: line for line in lines}


def looked(clock: Patient | None = None) -> TargetLook:
    objects = probe_objects(probe_run("check-1", TARGET), TARGET, "key", 300)
    kube = KubeClient.from_kubeconfig(None, "ml")
    return look_at(kube, TARGET, "lab", objects, clock or Patient())


def node(number: int) -> dict[str, Any]:
    return {
        "metadata": {"name": f"node-{number}", "labels": {"kubernetes.io/os": "linux"}},
        "spec": {},
        "status": {"allocatable": {"cpu": "8"}},
    }


PARTS = {
    "POST /apis/authentication.k8s.io": LOGIN,
    "POST /apis/authorization.k8s.io": YOUR_RIGHTS,
    "GET /api/v1/namespaces/ml/resourcequotas": QUOTA,
    "GET /api/v1/nodes": MACHINES,
    f"POST {PODS}": POLICY,
    "GET /apis/kueue.x-k8s.io": POLICY,
    "GET /api/v1/namespaces/ml/persistentvolumeclaims": STORAGE,
}
"""What is asked, and for which line."""


def test_what_is_not_answered_is_a_line_of_its_own(kube: FakeKube) -> None:
    for call, line in PARTS.items():
        kube.failing = {call: 1000}
        assert list(looked().failures) == [line], call
    kube.failing = dict.fromkeys(list(PARTS)[:3], 1000)
    lines = checked()
    for name in (LOGIN, YOUR_RIGHTS, QUOTA):
        assert lines[name].outcome == "failed"
        assert "the API server answers 500: etcd is busy" in lines[name].evidence
        assert "/readyz" in str(lines[name].fix)
    for name in (POLICY, STORAGE, IMAGE):
        assert "etcd" not in lines[name].evidence
    assert kube.objects == {}, "nothing is left"


def test_pods_that_cannot_be_looked_at(kube: FakeKube) -> None:
    kube.failing = {f"GET {PODS}": 3}
    lines = checked()
    assert "etcd" not in str(lines.values()), "it has answered later"
    kube.failing = {f"GET {PODS}": 10**6}
    lines = checked()
    assert lines[MACHINES].outcome == "failed"
    assert "its pods cannot be looked at: pods: the API server answers 500" in str(
        lines[MACHINES].evidence
    )
    kube.failing, kube.forbidden = {}, {PODS}
    assert "its pods cannot be looked at: pods: " in checked()[MACHINES].evidence
    assert kube.objects == {}


def test_a_check_that_cannot_be_removed_says_so(kube: FakeKube) -> None:
    said: list[str] = []
    kube.failing = {"DELETE /apis/batch": 1000}
    checked(said)
    assert any("of this check cannot be deleted: " in line for line in said)


def test_an_expired_login_is_said_at_once(kube: FakeKube) -> None:
    kube.refusing = {"POST /apis/authentication.k8s.io": [(401, "Unauthorized")]}
    lines = checked()
    assert lines[LOGIN].outcome == "failed"
    assert "not logged in" in lines[LOGIN].evidence
    assert {line.outcome for name, line in lines.items() if name != LOGIN} == {"not checked"}


def test_all_machines_are_looked_at(kube: FakeKube) -> None:
    for number in range(1234):
        kube.put(f"/api/v1/nodes/node-{number}", node(number))
    found = looked()
    assert found.nodes is not None
    assert len(found.nodes) == 1234
    assert not found.are_nodes_too_many


def test_too_many_machines_for_the_time_are_not_judged(kube: FakeKube) -> None:
    for number in range(30):
        kube.put(f"/api/v1/nodes/node-{number}", node(number))
    kube.page = 10

    class Slow(Patient):
        def monotonic(self) -> float:
            self.passed += 15.0
            return self.passed

    found = looked(Slow())
    assert found.nodes is None
    assert found.are_nodes_too_many
    assert found.failures == {}


def test_a_webhook_that_takes_no_dry_run_says_nothing_of_policy(kube: FakeKube) -> None:
    words = 'admission webhook "guard.example" does not support dry run'
    kube.reviews.refused_pods = dict.fromkeys(("worker", "coordinator"), (400, words))
    found = looked()
    assert found.refusals == {"worker": None, "coordinator": None}
    assert not found.is_hopeless


def test_a_killed_check_in_a_full_queue_is_removed_by_a_job_that_needs_none(kube: FakeKube) -> None:
    """A deadline does not count while a queue holds the Job."""
    objects = probe_objects(probe_run("check-1", TARGET), TARGET, "key", 300)
    client = KubeClient.from_kubeconfig(None, "ml")
    pods = ProbePods(client, "check-1", objects, "key", Patient(), [].append)
    pods.start()
    timer, job = (kube.objects[f"{JOBS}/headway-check-1{end}"] for end in ("-timer", ""))
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert "kueue.x-k8s.io/queue-name" not in timer["metadata"]["labels"]
    assert timer["spec"]["parallelism"] == 0
    assert timer["spec"]["activeDeadlineSeconds"] == 300
    (owner,) = job["metadata"]["ownerReferences"]
    assert (owner["name"], owner["uid"]) == ("headway-check-1-timer", timer["metadata"]["uid"])
    assert "controller" not in owner, "else Kueue would let it pass"
    others = [one for one in kube.objects.values() if one not in (timer, job)]
    for one in others:
        (owner,) = one["metadata"]["ownerReferences"]
        assert (owner["name"], owner["controller"]) == ("headway-check-1", True)
    pods.end()
    assert kube.objects == {}
