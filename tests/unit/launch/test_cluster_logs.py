"""What a node prints, beside what the cluster puts into its pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.kube.client import KubeClient
from headway.kube.names import GAVE_BACK, INDEX, labels
from headway.launch.cluster_logs import NodeLog
from support.clock import Patient
from support.fake_kube import fake_kube


def test_a_sidecars_lines_are_not_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with fake_kube(tmp_path) as kube:
        kube.job("it")
        metadata = {"name": "it-0-x", "labels": {**labels("it", "worker"), INDEX: "0"}}
        pod = {"metadata": metadata, "spec": {"containers": []}, "status": {"phase": "Running"}}
        kube.put("/api/v1/namespaces/ml/pods/it-0-x", pod)
        kube.printed["it-0-x"] = {"mesh-proxy": "ready", "worker": "step 1"}
        log = NodeLog(KubeClient.from_kubeconfig(None, "ml"), "it", 0, Patient())
        assert list(log.lines(follow=False)) == ["step 1"]


@pytest.mark.parametrize(
    ("mark", "queue"),
    [({GAVE_BACK: "1800000000 0 1 2"}, None), ({}, "gpus")],
    ids=["gave its pods back", "evicted by its queue"],
)
def test_lines_are_followed_across_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: dict[str, str], queue: str | None
) -> None:
    """A run that is suspended, and started again by itself, has not ended."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with fake_kube(tmp_path) as kube:
        kube.job("it", suspend=True, queue=queue)
        job = kube.objects["/apis/batch/v1/namespaces/ml/jobs/headway-it"]
        job["metadata"]["annotations"] = mark

        def start_and_finish() -> None:
            metadata = {"name": "it-0-y", "labels": {**labels("it", "worker"), INDEX: "0"}}
            pod = {"metadata": metadata, "spec": {"containers": []}}
            kube.printed["it-0-y"] = {"worker": "step 2"}
            kube.put("/api/v1/namespaces/ml/pods/it-0-y", pod | {"status": {"phase": "Succeeded"}})
            job["status"]["conditions"] = [{"type": "Complete", "status": "True"}]

        clock = Patient(start_and_finish)
        log = NodeLog(KubeClient.from_kubeconfig(None, "ml"), "it", 0, clock)
        assert list(log.lines(follow=True)) == ["step 2"]
