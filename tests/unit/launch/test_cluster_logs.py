"""What a node prints, beside what the cluster puts into its pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.kube.client import KubeClient
from headway.kube.names import INDEX, labels
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
