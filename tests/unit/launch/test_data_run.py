"""A preparation on a cluster is started once, watched by whoever wants to, and says why it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.errors import Exit, RunFailed
from headway.kube.client import KubeClient
from headway.kube.data_job import Preparation, data_objects
from headway.launch.data_run import (
    AWAY_SECONDS,
    UNJOINED_SECONDS,
    DataRun,
    NoLongerWatched,
    PreparationState,
    prepared_folders,
)
from headway.spec.target_file import Target
from support.clock import Patient
from support.fake_kube import READY, FakeKube, fake_kube

TARGET = Target.model_validate(
    {
        "kube": {"namespace": "ml"},
        "image": "registry.example/headway@sha256:" + "0" * 64,
        "storage": {"claim": "fs"},
    }
)
FOLDER = "p-" + "0a" * 16
WHAT = f'{{"into": "/headway/storage/sets/{FOLDER}"}}'
JOB = "/apis/batch/v1/namespaces/ml/jobs/headway-data-ab12"
OBJECTS = data_objects(Preparation("ab12", 4, 2, WHAT), TARGET)
DONE = PreparationState("", is_done=True)
AT_WORK = PreparationState("preparing c4: 43%")


class Line:
    def __init__(self) -> None:
        self.shown: list[str] = []
        self.said: list[str] = []

    def show(self, text: str) -> None:
        self.shown.append(text)

    def above(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with fake_kube(tmp_path) as kube:
        yield kube


@pytest.fixture
def run(kube: FakeKube) -> DataRun:
    return DataRun(KubeClient.from_kubeconfig(None, "ml"), "data-ab12", "lab", Patient())


def put_pod(kube: FakeKube, name: str, status: dict[str, Any]) -> None:
    labels = OBJECTS[0]["spec"]["template"]["metadata"]["labels"]
    pod = {"metadata": {"name": name, "labels": labels}, "status": status}
    kube.put(f"/api/v1/namespaces/ml/pods/{name}", {**pod, "spec": {"containers": []}})


def ended(code: int, message: str) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "message": message}}
    container = {
        "name": "data",
        "image": "it",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": state,
    }
    return {"phase": "Failed", "containerStatuses": [container]}


def states(*found: PreparationState) -> Callable[[], PreparationState]:
    left = list(found)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def watch(run: DataRun, *found: PreparationState, line: Line | None = None) -> bool:
    return run.watch(states(*found), lambda: False, line or Line())


def test_it_is_started_once(kube: FakeKube, run: DataRun) -> None:
    assert run.start(OBJECTS)
    assert not run.start(OBJECTS), "whoever types the same command watches"
    assert kube.named("jobs") == ["headway-data-ab12"]
    (policy,) = [one for path, one in kube.objects.items() if "networkpolicies" in path]
    assert policy["metadata"]["ownerReferences"][0]["name"] == "headway-data-ab12"


@pytest.mark.parametrize("kind", ["Failed", "Complete"])
def test_one_that_has_ended_is_replaced(kube: FakeKube, run: DataRun, kind: str) -> None:
    kube.job_status = {"conditions": [{"type": kind, "status": "True"}]}
    assert run.start(OBJECTS)
    kube.job_status = {}
    assert run.start(OBJECTS)
    assert "conditions" not in kube.objects[JOB]["status"]


def test_it_is_watched_until_the_set_is_complete(kube: FakeKube, run: DataRun) -> None:
    run.start(OBJECTS)
    put_pod(kube, "a", READY)
    line = Line()
    assert watch(run, AT_WORK, AT_WORK, DONE, line=line)
    assert line.shown == ["preparing c4: 43%  1 of 2 pods"] * 2


def test_why_pods_wait_is_said_once(kube: FakeKube, run: DataRun) -> None:
    run.start(OBJECTS)
    lacks = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: 3 Insufficient cpu."}
    put_pod(kube, "a", {"phase": "Pending", "conditions": [lacks]})
    line = Line()
    watch(run, AT_WORK, AT_WORK, DONE, line=line)
    (words,) = line.said
    assert words.startswith("no capacity: not enough cpu")


def test_pods_that_wait_for_minutes_are_told_how_to_ask_for_less(
    kube: FakeKube, run: DataRun
) -> None:
    wanted = TARGET.model_copy(
        update={"prepare": TARGET.prepare.model_copy(update={"resources": {"cpu": "8"}})}
    )
    run.start(data_objects(Preparation("ab12", 4, 2, WHAT), wanted))
    lacks = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: 3 Insufficient cpu."}
    put_pod(kube, "a", {"phase": "Pending", "conditions": [lacks]})
    line = Line()
    watch(run, *([AT_WORK] * 100), DONE, line=line)
    (_, advice) = line.said
    assert advice == (
        "no pod has started for 3 minutes; each asks for cpu: 8. What they ask for, and which "
        "machines may take them: prepare: {resources: ..., tolerations: ..., node_selector: ...} "
        "of target lab, after headway delete data-ab12 --on lab"
    )


class Overtaken(KubeClient):
    """Somebody else replaces the Job just before this one would delete it."""

    def delete_job(self, name: str, uid: str | None = None, version: str | None = None) -> bool:
        assert super().delete_job(name)
        self.create(OBJECTS[0] | {"metadata": OBJECTS[0]["metadata"] | {"uid": "of another"}})
        return super().delete_job(name, uid, version)


def test_of_two_launches_at_once_none_deletes_what_the_other_has_made(
    kube: FakeKube, run: DataRun
) -> None:
    kube.job_status = {"conditions": [{"type": "Failed", "status": "True"}]}
    run.start(OBJECTS)
    kube.job_status = {}
    late = DataRun(Overtaken.from_kubeconfig(None, "ml"), run.name, run.on, run.clock)
    assert not late.start(OBJECTS)
    assert kube.objects[JOB]["metadata"]["uid"] == "of another"


def test_a_refusal_ends_it_with_the_words_of_the_pod(kube: FakeKube, run: DataRun) -> None:
    run.start(OBJECTS)
    failed = PreparationState("", failure="no text in a.jsonl: 3 no column\nhint: column: body")
    with pytest.raises(RunFailed) as caught:
        watch(run, AT_WORK, failed)
    assert str(caught.value) == (
        "the preparation failed: no text in a.jsonl: 3 no column\n"
        "hint: column: body; then run the same command to resume it"
    )
    assert kube.named("jobs") == [], "or it would be tried again"


def test_the_error_of_a_pod_is_told_while_others_try_again(kube: FakeKube, run: DataRun) -> None:
    """Kubernetes tries for hours: whoever watches can mend it after a minute."""
    run.start(OBJECTS)
    kube.objects[JOB]["status"] = {"failed": 1}
    put_pod(kube, "a", ended(1, "part 1 of 4\nerror: this image has Headway 1.0\nhint: use 1.1\n"))
    put_pod(kube, "b", READY)
    line = Line()
    assert watch(run, AT_WORK, AT_WORK, DONE, line=line)
    (words,) = line.said
    assert words == (
        "a pod has failed, and another takes its place: this image has Headway 1.0\nhint: use 1.1"
    )
    assert line.shown == ["preparing c4: 43%  1 of 2 pods"] * 2


def test_a_job_that_failed_says_its_last_words(kube: FakeKube, run: DataRun) -> None:
    kube.job_status = {"conditions": [{"type": "Failed", "status": "True", "message": "index 1"}]}
    kube.job_status["conditions"][0]["reason"] = "MaxFailedIndexesExceeded"
    run.kube.create(OBJECTS[0])
    put_pod(kube, "a", ended(1, "error: s3://bucket/a cannot be read\nhint: check the keys\n"))
    with pytest.raises(RunFailed) as caught:
        watch(run, AT_WORK)
    assert caught.value.message == "the preparation failed: s3://bucket/a cannot be read"
    assert "check the keys" in (caught.value.hint or "")


def test_an_image_that_cannot_be_pulled_is_not_waited_for(kube: FakeKube, run: DataRun) -> None:
    run.start(OBJECTS)
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    container = ended(0, "")["containerStatuses"][0] | {"state": waits}
    put_pod(kube, "a", {"phase": "Pending", "containerStatuses": [container]})
    with pytest.raises(RunFailed, match="cannot start: the image cannot be pulled"):
        watch(run, AT_WORK)
    assert kube.named("jobs") == []


def test_parts_that_did_not_see_each_other(kube: FakeKube, run: DataRun) -> None:
    kube.job_status = {"conditions": [{"type": "Complete", "status": "True"}], "succeeded": 4}
    run.start(OBJECTS)
    assert not watch(run, AT_WORK)
    assert isinstance(run.clock, Patient)
    assert run.clock.passed > UNJOINED_SECONDS


def test_one_that_somebody_deletes(run: DataRun) -> None:
    with pytest.raises(RunFailed, match="was deleted"):
        watch(run, AT_WORK)


def test_a_storage_that_is_away_ends_the_watching_alone(kube: FakeKube, run: DataRun) -> None:
    run.start(OBJECTS)
    line = Line()

    def away() -> PreparationState:
        raise OSError("no route")

    with pytest.raises(NoLongerWatched) as caught:
        run.watch(away, lambda: False, line)
    assert caught.value.exit_code == Exit.STILL_RUNNING
    assert "continues on lab" in (caught.value.hint or "")
    assert line.said == ["no route; retrying"]
    assert isinstance(run.clock, Patient)
    assert run.clock.passed >= AWAY_SECONDS
    assert kube.named("jobs") == ["headway-data-ab12"]


def test_it_goes_with_the_last_run_that_needs_it(kube: FakeKube, run: DataRun) -> None:
    run.start(OBJECTS)
    for name in ("one", "two", "one"):
        kube.job(name)
        run.belong_to(run.kube.job(f"headway-{name}"))
    owners = kube.objects[JOB]["metadata"]["ownerReferences"]
    assert sorted(one["name"] for one in owners) == ["headway-one", "headway-two"]
    assert not any(one.get("controller") for one in owners)
    run.belong_to(None)
    assert not kube.objects[JOB]["metadata"]["ownerReferences"]


def test_what_is_being_prepared_is_not_pruned(run: DataRun) -> None:
    run.start(OBJECTS)
    assert list(prepared_folders(run.kube)) == [("data-ab12", FOLDER)]
