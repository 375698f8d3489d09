"""What Kubernetes does with a lost pod that is marked: its Job makes another at once, the scheduler
puts it elsewhere, and the marker goes with the Job. Without training: the machine is not lost."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cluster_tool.cluster import Cluster
from headway.kube.client import KubeClient
from headway.kube.names import FINALIZER, SUSPECT_UNTIL, labels, run_object
from headway.kube.pods import off_suspects
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

RUN = "it"
NODES = 3
REPLACED_SECONDS = 5.0
"""The Job waits for a second, and the rest is the machine's."""


def job(image: str) -> dict[str, Any]:
    apart = {"requiredDuringSchedulingIgnoredDuringExecution": [off_suspects()]}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels(RUN, "worker")},
    }
    container = {
        "name": "worker",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "600"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "affinity": {"podAntiAffinity": apart},
        "topologySpreadConstraints": [spread],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    template = {"metadata": {"labels": labels(RUN, "worker")}, "spec": pod}
    return {
        "metadata": {"name": run_object(RUN)},
        "spec": {
            "completionMode": "Indexed",
            "completions": NODES,
            "parallelism": NODES,
            "backoffLimitPerIndex": 100,
            "podReplacementPolicy": "Failed",
            "template": template,
        },
    }


def test_a_marked_pod_is_replaced_on_another_machine_and_goes_with_its_job(
    own_cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(own_cluster.kubeconfig))
    kube, api, image = (
        KubeClient.from_kubeconfig(None, namespace),
        own_cluster.api,
        own_cluster.image,
    )
    assert image
    jobs, pods = (
        f"/apis/batch/v1/namespaces/{namespace}/jobs",
        f"/api/v1/namespaces/{namespace}/pods",
    )
    made = api.create(jobs, job(image))

    def running() -> dict[str, dict[str, Any]] | None:
        """The Job's pods, by name, if all of them run."""
        selector = ",".join(f"{key}={value}" for key, value in labels(RUN, "worker").items())
        found = api.items(pods, labelSelector=selector)
        if len(found) < NODES or any(pod["status"]["phase"] != "Running" for pod in found):
            return None
        return {pod["metadata"]["name"]: pod for pod in found}

    before = wait_for("the pods", running)
    lost = next(iter(before.values()))
    name, machine = lost["metadata"]["name"], lost["spec"]["nodeName"]
    kube.mark_suspect(name, made["metadata"]["uid"], time.time() + 90)

    after = wait_for("another", running, REPLACED_SECONDS)
    (new,) = after.keys() - before.keys()
    assert name not in after
    index = "batch.kubernetes.io/job-completion-index"
    assert after[new]["metadata"]["labels"][index] == lost["metadata"]["labels"][index]
    assert after[new]["spec"]["nodeName"] != machine, "the machine is the emptiest, and suspect"
    status = api.get(f"{jobs}/{run_object(RUN)}")["status"]
    assert (status["active"], status.get("failed", 0)) == (NODES, 0), "it was not a failure"

    time.sleep(3)  # for the Job to adopt it again, if it did
    marker = api.get(f"{pods}/{name}")
    (owner,) = marker["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == (made["metadata"]["uid"], False)
    assert FINALIZER not in marker["metadata"].get("finalizers", ())
    assert float(marker["metadata"]["annotations"][SUSPECT_UNTIL]) > time.time()
    assert marker["status"]["phase"] == "Running"
    assert set(running() or ()) == set(after)

    api.delete(f"{jobs}/{run_object(RUN)}", propagationPolicy="Background")
    wait_for("all to go", lambda: not api.items(pods))
