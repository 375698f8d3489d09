"""The Job whose pods prepare a set."""

from __future__ import annotations

from typing import Any

import pytest

from headway.errors import BadInput
from headway.kube.data_job import MOST_CHARACTERS, MOST_PODS, Preparation, data_objects
from headway.kube.pod_overrides import TargetMismatch
from headway.spec.target_file import Target

IMAGE = "registry.example/headway@sha256:" + "0" * 64
OTHER = "registry.example/prepare@sha256:" + "1" * 64


def target(**keys: Any) -> Target:
    return Target.model_validate(
        {
            "kube": {"namespace": "ml"},
            "image": IMAGE,
            "storage": {"claim": "fs"},
            "pod": {"resources": {"cpu": 8, "memory": "32Gi", "rdma/hca": 8}},
            "security": "baseline",
            **keys,
        }
    )


def job_of(wanted: Target, parts: int = 6, nodes: int = 3, **more: Any) -> dict[str, Any]:
    return data_objects(Preparation("ab12", parts, nodes, '{"sources": []}', **more), wanted)[0]


def pod_of(wanted: Target, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = job_of(wanted, **more)["spec"]["template"]["spec"]
    return found


def variables(wanted: Target, **more: Any) -> dict[str, Any]:
    (container,) = pod_of(wanted, **more)["containers"]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def test_each_part_is_an_index() -> None:
    job = job_of(target())
    assert job["metadata"]["name"] == "headway-data-ab12"
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 6, 3)
    assert variables(target())["HEADWAY_DATA_PARTS"] == "6"
    assert variables(target())["HEADWAY_DATA_NODES"] == "3"
    assert job_of(target(), parts=2)["spec"]["parallelism"] == 2


def test_the_pod_of_a_dead_machine_is_replaced_without_it() -> None:
    """With a podFailurePolicy, Kubernetes would wait until its kubelet answers."""
    spec = job_of(target())["spec"]
    assert spec["podReplacementPolicy"] == "TerminatingOrFailed"
    assert "podFailurePolicy" not in spec
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (MOST_PODS - 1, 0)
    seconds = {one["key"]: one["tolerationSeconds"] for one in pod_of(target())["tolerations"]}
    assert seconds == {"node.kubernetes.io/not-ready": 0, "node.kubernetes.io/unreachable": 0}


def test_it_gets_processors_and_memory_of_workers_and_no_devices() -> None:
    (container,) = pod_of(target())["containers"]
    assert container["resources"]["limits"] == {"cpu": "8", "memory": "32Gi"}
    assert variables(target())["HEADWAY_PROCESSES"] == "8"
    own = target(prepare={"resources": {"cpu": "2500m"}, "nodes": 3})
    assert variables(own)["HEADWAY_PROCESSES"] == "2"
    assert variables(target(prepare={"resources": {"cpu": "450m"}}))["HEADWAY_PROCESSES"] == "1"
    assert "HEADWAY_PROCESSES" not in variables(target(prepare={"resources": {}}))


def test_it_is_no_whole_machine() -> None:
    """As `target add` writes it for eight GPUs: no machine without them has that much."""
    gpus = {"resources": {"cpu": "181", "memory": "1798Gi"}}
    (container,) = pod_of(target(pod=gpus))["containers"]
    assert container["resources"]["requests"] == {"cpu": "8", "memory": "32Gi"}
    assert variables(target(pod=gpus))["HEADWAY_PROCESSES"] == "8"
    small = {"resources": {"cpu": "3500m", "memory": "6000M"}}
    (container,) = pod_of(target(pod=small))["containers"]
    assert container["resources"]["requests"] == small["resources"]
    (container,) = pod_of(target(pod=gpus, prepare={"resources": {"cpu": 64}}))["containers"]
    assert container["resources"]["requests"] == {"cpu": "64"}


def test_it_goes_where_the_image_runs_but_not_to_accelerators() -> None:
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists"}
    team = {"key": "team", "operator": "Equal", "value": "us"}
    placed = {"architecture": "arm64", "tolerations": [gpu, team]}
    pod = pod_of(target(pod=placed))
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "arm64"}
    assert team in pod["tolerations"]
    assert gpu not in pod["tolerations"]
    selected = {"node_selector": {"kubernetes.io/arch": "arm64", "gpu": "h100"}}
    assert pod_of(target(pod=selected))["nodeSelector"] == {"kubernetes.io/arch": "arm64"}
    own = {"architecture": "amd64", "tolerations": [gpu]}
    pod = pod_of(target(pod=placed, prepare=own))
    assert pod["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert gpu in pod["tolerations"]
    assert team not in pod["tolerations"]
    assert "nodeSelector" not in pod_of(target(pod=placed, prepare={"image": OTHER}))
    assert team not in pod_of(target(pod=placed, prepare={"tolerations": []}))["tolerations"]


def test_it_talks_to_nobody() -> None:
    pod = pod_of(target())
    assert {one["name"] for one in pod["volumes"]} == {"headway-home", "headway-storage"}
    assert pod["automountServiceAccountToken"] is False


def test_it_may_be_placed_on_machines_of_its_own() -> None:
    tolerated = {"key": "cpu-only", "operator": "Exists"}
    prepare = {"node_selector": {"pool": "cpu"}, "tolerations": [tolerated], "image": OTHER}
    own = target(prepare=prepare, coordinator={"image": IMAGE})
    pod = pod_of(own)
    assert pod["nodeSelector"] == {"pool": "cpu"}
    assert tolerated in pod["tolerations"]
    assert pod["containers"][0]["image"] == OTHER


def test_an_image_without_headway_is_refused() -> None:
    with pytest.raises(TargetMismatch, match="which `image` lacks") as caught:
        job_of(target(coordinator={"image": IMAGE}))
    assert caught.value.path == ("prepare", "image")


def test_it_is_who_workers_are_for_the_cloud_and_waits_in_their_queue() -> None:
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/it"}
    made = data_objects(
        Preparation("ab12", 2, 2, "{}"),
        target(service_account={"annotations": role}, queue="research"),
    )
    job, _, account = made
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert account["metadata"]["annotations"] == role
    name = job["spec"]["template"]["spec"]["serviceAccountName"]
    assert name == account["metadata"]["name"] == "headway-data-ab12"


def test_tokens_of_the_run_reach_it() -> None:
    found = variables(target(secret="ours"), secrets=("HF_TOKEN",))
    assert found["HF_TOKEN"] == {"secretKeyRef": {"name": "ours", "key": "HF_TOKEN"}}


def test_tokens_that_the_target_names_reach_it() -> None:
    """`data prepare --on` has no run file, and `pod.env` is for everybody to read."""
    own = target(secret="ours", prepare={"secrets": ["HF_TOKEN", "KEY"]})
    found = variables(own, secrets=("HF_TOKEN",))
    for name in ("HF_TOKEN", "KEY"):
        assert found[name] == {"secretKeyRef": {"name": "ours", "key": name}}
    with pytest.raises(TargetMismatch, match="needs KEY, and nothing says which Secret"):
        pod_of(target(prepare={"secrets": ["KEY"]}))


def test_too_many_sources_for_a_variable() -> None:
    what = "x" * (MOST_CHARACTERS + 1)
    with pytest.raises(BadInput, match="more than the 100000"):
        data_objects(Preparation("ab12", 2, 2, what), target())
