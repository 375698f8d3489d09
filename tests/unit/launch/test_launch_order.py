"""The calls by which a run is made and deleted, in their order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headway.clock import SystemClock
from headway.errors import NotFound
from headway.kube.api_errors import ClusterUnreachable, Conflict, RequestRefused
from headway.kube.client import KubeClient
from headway.kube.names import LAUNCHING, QUEUE, SUSPECT, labels
from headway.launch.cluster_run import SETTLED_SECONDS, ClusterRun
from headway.launch.job_status import is_launching
from support.clock import Patient
from support.fake_kube import FakeKube, coordinator_path, fake_kube
from support.fake_pods import PODS
from support.kept_run import JOBS

WORKERS, COORDINATOR = f"{JOBS}/headway-it", coordinator_path("it")
RECORD = "/api/v1/namespaces/ml/configmaps/headway-it-record"
MADE = [f"POST {path.rpartition('/')[0]}" for path in (WORKERS, RECORD, COORDINATOR)]


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with fake_kube(tmp_path) as kube:
        yield kube


@pytest.fixture
def run(kube: FakeKube) -> ClusterRun:
    return ClusterRun(KubeClient.from_kubeconfig(None, "ml"), "it", "lab", SystemClock())


def objects(queue: str | None = None) -> list[dict[str, Any]]:
    def made(kind: str, name: str, its_labels: dict[str, str], **more: Any) -> dict[str, Any]:
        metadata = {"name": name, "namespace": "ml", "labels": its_labels}
        return {"kind": kind, "metadata": metadata, **more}

    workers = labels("it", "worker") | ({QUEUE: queue} if queue else {})
    spec = {"replicas": 1, "selector": {}, "template": {}}
    return [
        made("Job", "headway-it", workers, apiVersion="batch/v1", spec={"template": {}}),
        made("ConfigMap", "headway-it-record", labels("it"), apiVersion="v1"),
        made(
            "ReplicaSet",
            "headway-it-coordinator",
            labels("it", "coordinator"),
            apiVersion="apps/v1",
            spec=spec,
        ),
    ]


def test_workers_are_started_after_the_coordinator(kube: FakeKube, run: ClusterRun) -> None:
    """They could take its room, and nobody would ever start."""
    run.launch(objects())
    start = [f"GET {WORKERS}", f"PATCH {WORKERS}", f"PATCH {COORDINATOR}/scale"]
    assert kube.calls == [*MADE, *start]
    assert kube.objects[WORKERS]["spec"]["suspend"] is False


def test_a_launch_that_took_too_long_has_a_coordinator(
    kube: FakeKube, run: ClusterRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The laptop slept; the keeper has taken it for one that was interrupted."""
    start = run.kube.patch_job

    def start_late(name: str, patch: dict[str, Any]) -> Any:
        run.kube.scale_replica_set("headway-it-coordinator", 0)
        return start(name, patch)

    monkeypatch.setattr(run.kube, "patch_job", start_late)
    run.launch(objects())
    assert kube.objects[COORDINATOR]["spec"]["replicas"] == 1


def test_workers_of_an_interrupted_launch_do_not_start(kube: FakeKube, run: ClusterRun) -> None:
    kube.failing[MADE[-1]] = 1
    with pytest.raises(ClusterUnreachable):
        run.launch(objects())
    assert kube.objects[WORKERS]["spec"]["suspend"] is True


def test_in_a_queue_kueue_starts_them(kube: FakeKube, run: ClusterRun) -> None:
    run.launch(objects(queue="research"))
    assert kube.calls == [*MADE, f"GET {WORKERS}", f"PATCH {WORKERS}"]
    assert "suspend" not in kube.objects[WORKERS]["spec"]


@pytest.mark.parametrize("queue", [None, "research"])
def test_a_launch_is_marked_until_all_is_made(
    kube: FakeKube, run: ClusterRun, queue: str | None
) -> None:
    kube.failing[MADE[-1]] = 1
    with pytest.raises(ClusterUnreachable):
        run.launch(objects(queue))
    assert is_launching(run.require_job())
    kube.objects.clear()
    run.launch(objects(queue))
    assert not is_launching(run.require_job())


def test_another_launch_is_waited_for(kube: FakeKube, run: ClusterRun) -> None:
    clock = run.clock = Patient(lambda: clock.passed > 5 and run.resume())
    kube.failing[MADE[-1]] = 1
    with pytest.raises(ClusterUnreachable):
        run.launch(objects())
    kube.coordinator("it")
    said: list[str] = []
    job = run.settled_job(said.append)
    assert job is not None
    assert not is_launching(job)
    assert said == [
        "another command is launching run it, or was interrupted: waiting until it is done, or "
        "has shown nothing for 60 s"
    ]
    assert clock.passed < 10


def test_one_that_was_interrupted_is_not_waited_for_forever(
    kube: FakeKube, run: ClusterRun
) -> None:
    clock = run.clock = Patient()
    kube.failing[MADE[-1]] = 1
    with pytest.raises(ClusterUnreachable):
        run.launch(objects())
    said: list[str] = []
    job = run.settled_job(said.append)
    assert job is not None
    assert is_launching(job)
    assert said[-1] == "it was interrupted: what it has made is deleted"
    assert SETTLED_SECONDS < clock.passed < SETTLED_SECONDS + 5


def test_a_stopped_run_is_not_waited_for(kube: FakeKube, run: ClusterRun) -> None:
    clock = run.clock = Patient()
    kube.job("it", suspend=True)
    assert run.settled_job(lambda _: None) is not None
    assert clock.passed == 0.0


def another_command(kube: FakeKube, clock: Patient) -> ClusterRun:
    return ClusterRun(KubeClient.from_kubeconfig(None, "ml"), "it", "lab", clock)


def before_each_call(run: ClusterRun, act: Callable[[], None]) -> None:
    http = run.kube._http
    hooks = http.event_hooks
    http.event_hooks = {**hooks, "request": [*hooks["request"], lambda _: act()]}


class Daytime(Patient):
    """The time of day passes as well."""

    def now(self) -> float:
        return self.passed


def test_a_slow_launch_shows_that_it_works(kube: FakeKube, run: ClusterRun) -> None:
    """Each call takes 5 s; without a sign of life, the next command would take it over."""
    clock = run.clock = Daytime()
    signs: dict[str, float] = {}

    def pass_time() -> None:
        clock.sleep(5.0)
        job = kube.objects.get(WORKERS, {"metadata": {}})
        if sign := job["metadata"].get("annotations", {}).get(LAUNCHING):
            signs.setdefault(sign, clock.passed)

    many = [copy.deepcopy(objects()[1]) for _ in range(20)]
    for index, one in enumerate(many):
        one["metadata"]["name"] = f"headway-it-{index}"
    before_each_call(run, pass_time)
    run.launch([objects()[0], *many, objects()[-1]])
    times = [*signs.values(), clock.passed]
    assert clock.passed > 100.0
    assert max(after - before for before, after in pairwise(times)) <= SETTLED_SECONDS / 2


def test_a_launch_that_shows_that_it_works_is_waited_for(kube: FakeKube, run: ClusterRun) -> None:
    """Up to ten minutes here, since that is how long its calls take."""
    kube.job("it", suspend=True)
    annotations = kube.objects[WORKERS]["metadata"]["annotations"] = {LAUNCHING: "0"}

    def go_on() -> None:
        annotations[LAUNCHING] = str(clock.passed // 30)
        if clock.passed > 600.0:
            run.resume()

    clock = run.clock = Patient(go_on)
    kube.coordinator("it")
    said: list[str] = []
    job = run.settled_job(said.append)
    assert job is not None
    assert not is_launching(job)
    assert len(said) == 1


def test_a_launch_that_was_replaced_leaves_the_coordinator_of_the_other_alone(
    kube: FakeKube, run: ClusterRun
) -> None:
    """Its own would be garbage: its owner is gone. And the run would have none."""
    other = another_command(kube, Patient())
    took_over = False

    def replace() -> None:
        nonlocal took_over
        if not took_over and RECORD in kube.objects:  # the coordinator is next
            took_over = True
            other.delete(lambda _: None, kube.objects[WORKERS]["metadata"]["uid"])
            other.launch(objects())

    run.clock = Patient()
    before_each_call(run, replace)
    with pytest.raises(Conflict) as caught:
        run.launch(objects())
    (owner,) = kube.objects[COORDINATOR]["metadata"]["ownerReferences"]
    assert owner["uid"] == other.launched_uid
    assert kube.objects[WORKERS]["metadata"]["uid"] == other.launched_uid
    assert "was stopped, deleted or launched anew" in str(caught.value)


def test_a_launch_whose_mark_was_taken_starts_nothing_and_deletes_nothing(
    kube: FakeKube, run: ClusterRun
) -> None:
    """Somebody has stopped the run meanwhile, and has it from then on."""
    other, stopped = another_command(kube, Patient()), False

    def stop() -> None:
        nonlocal stopped
        if not stopped and COORDINATOR in kube.objects:
            stopped = True
            other.stop(lambda _: None)

    before_each_call(run, stop)
    with pytest.raises(Conflict, match="was stopped, deleted or launched anew"):
        run.launch(objects())
    assert kube.objects[WORKERS]["spec"]["suspend"] is True
    assert run.launched_uid is None, "so that it is not deleted"


def test_what_an_earlier_launch_has_left_is_waited_for(kube: FakeKube, run: ClusterRun) -> None:
    """Kubernetes deletes what a Job owned some time after the Job."""
    kube.put(RECORD, {"metadata": {"name": "headway-it-record", "labels": labels("it")}})
    clock = run.clock = Patient(lambda: clock.passed > 3 and kube.objects.pop(RECORD, None))
    run.launch(objects())
    (owner,) = kube.objects[RECORD]["metadata"]["ownerReferences"]
    assert owner["uid"] == run.launched_uid


def test_what_is_of_no_launch_is_named_and_left_alone(kube: FakeKube, run: ClusterRun) -> None:
    kube.put(RECORD, {"metadata": {"name": "headway-it-record", "labels": labels("it")}})
    run.clock = Patient()
    with pytest.raises(RequestRefused) as caught:
        run.launch(objects())
    assert str(caught.value) == (
        "namespace ml has a ConfigMap headway-it-record that this launch has not made\n"
        "hint: if nothing needs it: kubectl delete configmap headway-it-record -n ml"
    )
    assert "ownerReferences" not in kube.objects[RECORD]["metadata"]
    assert run.launched_uid is not None, "so that it is deleted again"


def test_a_queue_that_the_target_does_not_name_is_named(kube: FakeKube, run: ClusterRun) -> None:
    """Kueue puts Jobs into a LocalQueue `default`, and would restart what the coordinator stops."""
    kube.default_queue = "default"
    with pytest.raises(RequestRefused) as caught:
        run.launch(objects())
    assert str(caught.value) == (
        "the cluster has put run it into Kueue's queue default, and target lab names no queue\n"
        "hint: queue: default in target lab"
    )
    assert kube.calls == [f"POST {JOBS}"]
    assert run.launched_uid is not None, "so that it is deleted again"


def test_a_run_that_is_there_already_is_not_changed(kube: FakeKube, run: ClusterRun) -> None:
    kube.job("it")
    with pytest.raises(Conflict, match="already exists"):
        run.launch(objects())
    assert run.launched_uid is None
    assert kube.objects[WORKERS]["spec"]["suspend"] is False


@pytest.mark.trap(22)
def test_only_the_job_that_was_seen_is_deleted(kube: FakeKube, run: ClusterRun) -> None:
    kube.job("it")
    with pytest.raises(Conflict):
        run.delete(lambda _: None, uid="of the one before")
    assert kube.named("jobs") == ["headway-it"]
    assert run.delete(lambda _: None, uid=kube.objects[WORKERS]["metadata"]["uid"])
    assert kube.named("jobs") == []


def put_marker(kube: FakeKube, name: str) -> None:
    """Of a run: a lost pod."""
    metadata = {"name": f"{name}-1-lost", "labels": labels(name) | {SUSPECT: "true"}}
    pod = {"metadata": metadata, "spec": {"containers": []}, "status": {"phase": "Running"}}
    kube.put(f"{PODS}/{name}-1-lost", pod)


def test_stop_deletes_markers_though_the_keeper_is_lost(kube: FakeKube, run: ClusterRun) -> None:
    """Nobody else would: their machines would be closed to all runs of the namespace."""
    kube.job("it")
    put_marker(kube, "it")
    put_marker(kube, "other")
    run.stop(lambda _: None)
    assert kube.named("pods") == ["other-1-lost"]


def test_delete_does_not_wait_for_a_lost_machine(kube: FakeKube, run: ClusterRun) -> None:
    """Its pod, the marker, is deleted with the Job, and stays for lack of a kubelet."""
    kube.job("it")
    put_marker(kube, "it")
    assert run.delete(lambda _: None)
    assert kube.objects == {}
    assert f"DELETE {PODS}/it-1-lost" in kube.calls


def test_a_run_that_is_not_there_names_the_command_that_lists_those_that_are(
    kube: FakeKube, run: ClusterRun
) -> None:
    with pytest.raises(NotFound) as caught:
        run.require_job()
    assert caught.value.hint == "to list its runs: headway list --on lab"
