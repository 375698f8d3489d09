"""Karpenter makes machines for the pods of a run: for those of a launch, all at once, and for the
replacement of a lost one. Its machines are not real: the pods get real ones later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_tool import faults, pods
from cluster_tool.cluster import Cluster
from cluster_tool.karpenter import Karpenter, karpenter
from cluster_tool.readiness import is_ready
from headway.clock import seconds_of
from headway.kube.client import KubeClient
from support.lab import Lab
from support.plugs import away_from_the_coordinator
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.long("Karpenter takes ten minutes to build"),
]

RECORDED = Path(__file__).parent / "recorded" / "job-646f54f.yaml"
PROVISIONED_SECONDS = 60.0
LAUNCHED_SECONDS = 180.0
HEALED_SECONDS = 120.0
GATES = "/spec/schedulingGates"
TERM = (
    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0"
)


@pytest.fixture
def provisioner(own_cluster: Cluster, namespace: str) -> Iterator[Karpenter]:
    with karpenter(own_cluster) as started:
        yield started


def cordon_all(cluster: Cluster, *, but: str = "") -> None:
    for node in cluster.nodes:
        if node.name != but:
            faults.cordon(node, cluster.api)


def uncordon_all(cluster: Cluster) -> None:
    for node in cluster.nodes:
        faults.uncordon(node, cluster.api)


def wait_until_provisioned(provisioner: Karpenter, lab: Lab, names: set[str]) -> None:
    def seen() -> bool:
        return names <= provisioner.provisioned(lab.namespace).keys()

    wait_for(f"machines for {names}", seen, PROVISIONED_SECONDS)
    assert not names & provisioner.refused(lab.namespace).keys()


def names_of(found: list[dict[str, Any]]) -> set[str]:
    return {pod["metadata"]["name"] for pod in found}


def all_pods(lab: Lab) -> set[str]:
    return names_of(lab.pods()) | names_of(lab.pods("coordinator"))


def test_a_launch_on_a_cluster_without_room(lab: Lab, bucket: Path, provisioner: Karpenter) -> None:
    """Machines for the coordinator and the workers are made together: nothing waits for the
    coordinator to run first."""
    cordon_all(lab.cluster)
    with lab.typed("run", "--on", "lab", "--nodes", "2") as launch:
        every = wait_for(
            "the pods",
            lambda: all_pods(lab) if len(all_pods(lab)) == 3 else None,
            LAUNCHED_SECONDS,
        )
        wait_until_provisioned(provisioner, lab, every)
        machines = {provisioner.provisioned(lab.namespace)[name] for name in names_of(lab.pods())}
        assert len(machines) == 2, "workers are spread"
        assert len(provisioner.claims()) >= 2
        assert not any("nodeName" in pod["spec"] for pod in lab.pods("coordinator"))
        uncordon_all(lab.cluster)
        assert launch.end(LAUNCHED_SECONDS) == 0, launch.output
    assert every == all_pods(lab), "the same pods run"
    lab.headway("stop")


def test_a_lost_pod_on_a_cluster_without_room(lab: Lab, provisioner: Karpenter) -> None:
    """The dead machine has room, and is Ready for Kubernetes: Karpenter must not count on it."""
    lab.headway("run", "--on", "lab", "--nodes", "2")
    lab.wait_for_workers(2)
    lab.wait_for_step(lab.step() + 5)
    assert provisioner.claims() == [], "there was room"
    before = names_of(lab.pods())
    node = lab.node_of(away_from_the_coordinator(lab))
    cordon_all(lab.cluster, but=node.name)
    faults.pull_plug(node)

    new = wait_for("a replacement", lambda: names_of(lab.pods()) - before, PROVISIONED_SECONDS)
    wait_until_provisioned(provisioner, lab, new)
    (claim,) = provisioner.claims()
    (marker,) = lab.markers()
    assert marker["spec"]["nodeName"] == node.name
    made = seconds_of(claim["metadata"]["creationTimestamp"])
    assert is_ready(lab.cluster.api, node.name) or made < _not_ready_since(lab.cluster, node.name)

    uncordon_all(lab.cluster)
    lab.wait_for_workers(2, HEALED_SECONDS)
    assert new <= names_of(lab.pods()), "the same pod has found another machine"
    lab.headway("stop")
    lab.require_exact()


def _not_ready_since(cluster: Cluster, name: str) -> float:
    node = cluster.api.get(f"/api/v1/nodes/{name}")
    (ready,) = (one for one in node["status"]["conditions"] if one["type"] == "Ready")
    return seconds_of(ready["lastTransitionTime"])


def test_pods_as_they_were_before(
    own_cluster: Cluster, namespace: str, provisioner: Karpenter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of commit 646f54f. All had a gate until the coordinator ran; then the keeper lifted it,
    and named the machine that the replacement of a lost pod should avoid."""
    monkeypatch.setenv("KUBECONFIG", str(own_cluster.kubeconfig))
    api, image = own_cluster.api, own_cluster.image
    assert image
    job = yaml.safe_load(RECORDED.read_text())
    job["metadata"]["namespace"] = namespace
    job["spec"] |= {"completions": 2, "parallelism": 2}
    claim = own_cluster.lend(namespace).claim
    for volume in job["spec"]["template"]["spec"]["volumes"]:
        if "persistentVolumeClaim" in volume:
            volume["persistentVolumeClaim"]["claimName"] = claim
    cordon_all(own_cluster)
    KubeClient.from_kubeconfig(None, namespace).create(job)
    path = f"/api/v1/namespaces/{namespace}/pods"
    found = wait_for("both pods", lambda: two if len(two := api.items(path)) == 2 else None)
    names = names_of(found)
    first, replacement = sorted(names)

    pods.start(api, namespace, "plain", image, ["sleep", "600"])
    wait_for("a machine for another pod", lambda: _has_one(provisioner, namespace, "plain"))
    assert not names & provisioner.provisioned(namespace).keys(), "gated pods are not seen"

    lift_gate(own_cluster, namespace, replacement, not_on=own_cluster.nodes[0].name)
    lift_gate(own_cluster, namespace, first)
    wait_for("a machine for the first", lambda: _has_one(provisioner, namespace, first))
    why = wait_for(
        "an answer", lambda: provisioner.refused(namespace).get(replacement), PROVISIONED_SECONDS
    )
    assert "matchFields is not supported" in why
    assert replacement not in provisioner.provisioned(namespace)


def _has_one(provisioner: Karpenter, namespace: str, pod: str) -> bool:
    return pod in provisioner.provisioned(namespace)


def lift_gate(cluster: Cluster, namespace: str, pod: str, not_on: str | None = None) -> None:
    """By the patch of that commit."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
    patch: list[dict[str, Any]] = [
        {"op": "test", "path": f"{GATES}/0/name", "value": "headway/placed"}
    ]
    if not_on is not None:
        fields = [{"key": "metadata.name", "operator": "NotIn", "values": [not_on]}]
        patch.append({"op": "add", "path": f"{TERM}/matchFields", "value": fields})
    patch.append({"op": "remove", "path": f"{GATES}/0"})
    cluster.api.patch(path, patch)
