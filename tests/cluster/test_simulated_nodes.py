"""Simulated nodes take pods, and let go of them."""

from __future__ import annotations

import pytest

from cluster_tool.api import Object
from cluster_tool.cluster import Cluster
from cluster_tool.kwok import LABEL, simulated_nodes
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NUM_PODS = 60


def _job(image: str) -> Object:
    container = {
        "name": "main",
        "image": image,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "restartPolicy": "Never",
        "nodeSelector": {LABEL: "true"},
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    count = {"completions": NUM_PODS, "parallelism": NUM_PODS, "completionMode": "Indexed"}
    return {"metadata": {"name": "many"}, "spec": {**count, "template": {"spec": pod}}}


@pytest.mark.long("of the tests' tool; only `make bench-kwok` uses it")
def test_a_job_runs_on_them_in_name(own_cluster: Cluster, namespace: str) -> None:
    api, image = own_cluster.api, own_cluster.image
    assert image
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with simulated_nodes(own_cluster, 20) as names:
        assert len(names) == 20
        api.create(path, _job(image))
        wait_for("the pods", lambda: api.get(f"{path}/many")["status"].get("ready") == NUM_PODS)
        # One that is deleted ends as a kubelet's would, and is replaced.
        gone = api.items(pods)[0]["metadata"]["name"]
        api.delete(f"{pods}/{gone}")
        wait_for("it to go", lambda: api.find(f"{pods}/{gone}") is None)
        wait_for("another", lambda: api.get(f"{path}/many")["status"].get("ready") == NUM_PODS)
        api.delete(f"{path}/many", propagationPolicy="Background")
        wait_for("all to go", lambda: not api.items(pods))
