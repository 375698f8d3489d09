"""What Kubernetes itself makes of events, of changes that come too late, and of pods that cannot
start."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headway.kube.api_errors import Conflict, RequestRefused
from headway.kube.client import KubeClient
from support.guide_rights import users_kubeconfig
from support.lab import Lab
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(480),
    pytest.mark.long("several runs, one after the other"),
]

SAID_SECONDS = 90.0
NO_IMAGE = "registry.invalid/none@sha256:" + "0" * 64
OTHER_UID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"


def job_of(lab: Lab, name: str = "it") -> dict[str, Any]:
    path = f"/apis/batch/v1/namespaces/{lab.namespace}/jobs/headway-{name}"
    found: dict[str, Any] = lab.cluster.api.get(path)
    return found


def events_of_job(lab: Lab) -> dict[str, dict[str, Any]]:
    """Headway's own, by reason."""
    about = f"involvedObject.uid={job_of(lab)['metadata']['uid']}"
    path = f"/api/v1/namespaces/{lab.namespace}/events"
    found = lab.cluster.api.items(path, fieldSelector=about)
    return {one["reason"]: one for one in found if one["reportingComponent"] == "headway"}


def kill_pod(lab: Lab, pod: dict[str, Any]) -> None:
    for pid in lab.node_of(pod).pod_pids(pod["metadata"]["uid"]):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_events_on_the_job_changes_that_come_too_late_and_cleanup(lab: Lab, bucket: Path) -> None:
    lab.change_target(keep={"stopped": "5s"})
    lab.headway("run", "--on", "lab", "--nodes", "2")
    posted_when_a_pod_is_killed(lab)
    late_changes_are_refused(lab)
    a_stopped_run_is_cleaned_up(lab, bucket)


def posted_when_a_pod_is_killed(lab: Lab) -> None:
    wait_for("two workers", lambda: len(lab.pods()) == 2, SAID_SECONDS)
    wait_for("its start", lambda: "TrainingStarted" in events_of_job(lab), SAID_SECONDS)
    killed = lab.pods()[0]
    kill_pod(lab, killed)
    wait_for("the replacement", lambda: "NodeReplaced" in events_of_job(lab), SAID_SECONDS)
    found = events_of_job(lab)
    assert found["NodeLost"]["type"] == "Warning"
    assert killed["metadata"]["name"] in found["NodeLost"]["message"]
    assert found["NodeReplaced"]["type"] == found["TrainingStarted"]["type"] == "Normal"


def late_changes_are_refused(lab: Lab) -> None:
    """The Job is another one by now, or was changed since it was read: 409, or 422 of a patch."""
    client = KubeClient.from_kubeconfig(None, lab.namespace)
    old = job_of(lab)["metadata"]
    annotated = {"metadata": {"annotations": {"test/changed": "true"}}}
    client.patch_job(old["name"], annotated)
    with pytest.raises(Conflict, match="ResourceVersion in the precondition"):
        client.delete_job(old["name"], old["uid"], old["resourceVersion"])
    with pytest.raises(Conflict, match="UID"):
        client.delete_job(old["name"], OTHER_UID)
    of_another = {"metadata": {"uid": OTHER_UID}, "spec": {"suspend": True}}
    with pytest.raises(RequestRefused, match=r"uid|UID"):
        client.patch_job(old["name"], of_another)
    now = job_of(lab)
    assert now["metadata"]["uid"] == old["uid"]
    assert not now["spec"].get("suspend")
    assert "headway/launching" not in now["metadata"]["annotations"]


def a_stopped_run_is_cleaned_up(lab: Lab, bucket: Path) -> None:
    said = lab.headway("target", "cleanup", "lab", "--yes").stderr
    assert "no run on lab was stopped longer ago" in said
    lab.headway("stop")

    def is_cleaned_up() -> bool:
        return (
            "deleted the objects of run it"
            in lab.headway("target", "cleanup", "lab", "--yes").stderr
        )

    wait_for("it to be old enough", is_cleaned_up, SAID_SECONDS)
    wait_for("nothing to be left", lambda: lab.objects() == [], SAID_SECONDS)
    assert (bucket / "runs" / "it" / "spec.json").is_file()
    assert [*bucket.glob("runs/it/checkpoints/*")] != []


def test_pods_that_never_start_hold_no_machines(lab: Lab, bucket: Path) -> None:
    container = {"name": "warm-up", "image": NO_IMAGE, "command": ["true"]}
    lab.change_target(
        {"init_containers": [container]},
        scarcity={"give_back_after": "20s", "try_again_after": "1h"},
    )
    with lab.typed("run", "--on", "lab", "--nodes", "2") as launch:
        launch.wait_for("the image cannot be pulled", SAID_SECONDS)
        assert launch.interrupt() == 130, launch.output
    wait_for("it to give them back", lambda: lab.status()["state"] == "waiting", SAID_SECONDS)
    said = lab.headway("status").stdout
    assert "did not start: the image cannot be pulled: " in said
    assert NO_IMAGE in said
    wait_for("its pods to end", lambda: lab.pods() == [], SAID_SECONDS)
    wait_for("its event", lambda: "GaveBack" in events_of_job(lab), SAID_SECONDS)
    lab.headway("stop")


def test_what_cannot_be_mounted_is_named(
    lab: Lab, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To somebody who may not read Secrets: others are told before the launch."""
    kubeconfig = users_kubeconfig(lab.cluster, lab.namespace, lab.folder)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    volumes = [*lab.target()["pod"]["volumes"], {"name": "x", "secret": {"secretName": "none"}}]
    mounts = [*lab.target()["pod"]["mounts"], {"name": "x", "mountPath": "/x"}]
    lab.change_target({"volumes": volumes, "mounts": mounts})
    with lab.typed("run", "--on", "lab", "--nodes", "1") as launch:
        launch.wait_for('its machine cannot start it: MountVolume.SetUp failed for volume "x"', 90)
        assert 'secret "none" not found' in launch.output
        assert launch.interrupt() == 130, launch.output
    lab.headway("stop")
