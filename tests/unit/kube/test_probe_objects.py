"""Objects of a check: pods as those of a run, owned by a Job that ends by itself."""

from __future__ import annotations

from typing import Any

import pytest

from headway.kube.manifests import manifests
from headway.kube.names import COMPONENT, Object
from headway.kube.node_fit import fits
from headway.kube.probe_objects import probe_objects, probe_run
from headway.spec.target_file import Target

IMAGE = f"registry/headway@sha256:{'0' * 64}"
CONTENT: dict[str, Any] = {
    "kube": {"namespace": "ml"},
    "image": IMAGE,
    "storage": {"claim": "shared"},
    "pod": {"resources": {"cpu": "2", "memory": "4Gi"}},
}
OURS = ("command", "env", "volumeMounts", "ports", "readinessProbe")


def made(**changed: Any) -> tuple[list[Object], list[Object]]:
    """Those of a check, and those of a run with the same name."""
    target = Target.model_validate({**CONTENT, **changed})
    run = probe_run("check-1", target)
    return probe_objects(run, target, "key", 300), manifests(run, target, "key")


def pods(objects: list[Object]) -> dict[str, Object]:
    return {
        one["kind"]: one["spec"]["template"]["spec"]
        for one in objects
        if one["kind"] in ("Job", "ReplicaSet")
    }


TARGETS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bucket": {"storage": {"url": "s3://bucket/team", "secret": "keys"}},
    "own image": {"coordinator": {"image": IMAGE}},
    "gpus on spot machines": {
        "resources": {"accelerators": "H100:8", "nodes": "4..8", "spot": "above_min"},
        "spot_label": {"karpenter.sh/capacity-type": "spot"},
    },
    "shared account": {"service_account": {"coordinator": "keeps", "name": "works"}},
    "the machine's network": {
        "security": "baseline",
        "pod": {**CONTENT["pod"], "host_network": True},
    },
    "queue": {"queue": "gpus", "priority": "high"},
}


@pytest.mark.parametrize("changed", TARGETS.values(), ids=TARGETS)
def test_pods_are_placed_and_limited_as_those_of_a_run(changed: dict[str, Any]) -> None:
    ours, theirs = (pods(objects) for objects in made(**changed))
    for kind, spec in theirs.items():
        mine = ours[kind]
        for key in ("affinity", "tolerations", "securityContext", "serviceAccountName"):
            assert mine.get(key) == spec.get(key), key
        for key in ("hostNetwork", "nodeSelector", "imagePullSecrets", "runtimeClassName"):
            assert mine.get(key) == spec.get(key), key
        same, other = mine["containers"][0], spec["containers"][0]
        for key in same.keys() | other.keys() - set(OURS):
            if key not in OURS:
                assert same.get(key) == other.get(key), key
        assert "schedulingGates" not in mine
        assert {one["name"] for one in other["volumeMounts"]} <= {
            one["name"] for one in same["volumeMounts"]
        }


@pytest.mark.parametrize("changed", TARGETS.values(), ids=TARGETS)
def test_a_job_with_a_deadline_owns_all(changed: dict[str, Any]) -> None:
    (job, *others), theirs = made(**changed)
    assert job["kind"] == "Job"
    spec = job["spec"]
    assert (spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (300, 60)
    assert job["metadata"]["labels"][COMPONENT] == "probe"  # no run that is listed
    assert len(others) == len(theirs)  # without its Job, with the program


def test_the_machines_network_gives_each_worker_its_machine() -> None:
    (job, *_), _ = made(**TARGETS["the machine's network"])
    worker = job["spec"]["template"]["spec"]["containers"][0]
    assert worker["ports"] == [{"name": "probe", "containerPort": 7461, "protocol": "TCP"}]


def test_a_probe_finds_what_would_bring_headway() -> None:
    (job, *_), _ = made(**TARGETS["own image"])
    spec = job["spec"]["template"]["spec"]
    assert [one["name"] for one in spec["initContainers"]] == ["wheels"]
    (probe,) = spec["containers"]
    assert {"name": "HEADWAY_PROBE_BOOTSTRAP", "value": "/headway/packages"} in probe["env"]


def test_which_machines_fit() -> None:
    pod = {
        "nodeSelector": {"zone": "a"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "os", "operator": "NotIn", "values": ["windows"]},
                                {"key": "gpu", "operator": "In", "values": ["H100", "H200"]},
                            ]
                        }
                    ]
                }
            }
        },
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    }
    good = {"zone": "a", "gpu": "H200"}

    def node(labels: dict[str, str], **spec: Any) -> Object:
        return {"metadata": {"name": "it", "labels": labels}, "spec": spec}

    def taint(key: str, effect: str = "NoSchedule") -> list[dict[str, str]]:
        return [{"key": key, "effect": effect}]

    assert fits(node(good), pod)
    assert fits(node(good, taints=taint("nvidia.com/gpu")), pod)
    assert fits(node(good, taints=taint("other", "PreferNoSchedule")), pod)
    assert not fits(node(good, taints=taint("other")), pod)
    assert not fits(node(good, unschedulable=True), pod)
    assert not fits(node({**good, "zone": "b"}), pod)
    assert not fits(node({**good, "gpu": "A100"}), pod)
    assert not fits(node({**good, "os": "windows"}), pod)
