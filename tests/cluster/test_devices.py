"""Machines with invented GPUs of two kinds: pods get the kind that the run asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cluster_tool.cluster import Cluster
from headway.kube.device_labels import GKE, PRODUCT
from support.lab import Lab
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

DEVICE = "nvidia.com/gpu"
PLACED_SECONDS = 20.0
LABELS = (
    {PRODUCT: "NVIDIA-H100-80GB-HBM3"},
    {GKE: "nvidia-a100-80gb"},
    {},
)
"""Of the three machines, as two different clusters label them; the last says nothing."""


@pytest.fixture
def machines(own_cluster: Cluster) -> Iterator[list[str]]:
    """Names of machines that say that they have eight GPUs."""
    names = [node.name for node in own_cluster.nodes]

    def say(name: str, count: str | None, labels: dict[str, str | None]) -> None:
        room = {DEVICE: count}
        path = f"/api/v1/nodes/{name}"
        own_cluster.api.patch(path, {"metadata": {"labels": labels}})
        own_cluster.api.patch(f"{path}/status", {"status": {"capacity": room, "allocatable": room}})

    for name, labels in zip(names, LABELS, strict=True):
        say(name, "8", {**labels})
    try:
        yield names
    finally:
        for name, labels in zip(names, LABELS, strict=True):
            say(name, None, dict.fromkeys(labels))


def _launch(lab: Lab, name: str, accelerators: str, nodes: int) -> None:
    """The workers' Job as `headway run` makes it. There is no GPU to train on: what these pods
    would mount is not there, so they are placed, and wait."""
    settings = (f"name={name}", f"resources.accelerators={accelerators}", "precision=fp32")
    options = [word for setting in settings for word in ("--set", setting)]
    shown = lab.headway(
        "run", "--on", "lab", "--nodes", str(nodes), *options, "--dry-run", "--output", "json"
    )
    job = json.loads(shown.stdout)["items"][0]
    lab.cluster.api.create(f"/apis/batch/v1/namespaces/{lab.namespace}/jobs", job)


def _machines_of(lab: Lab, name: str) -> list[str]:
    return [pod["spec"]["nodeName"] for pod in _pods(lab, name) if "nodeName" in pod["spec"]]


def _pods(lab: Lab, name: str) -> list[dict[str, Any]]:
    label = "app.kubernetes.io/instance"
    return [pod for pod in lab.pods() if pod["metadata"]["labels"][label] == name]


def _is_refused(lab: Lab, name: str) -> bool:
    return any(
        "node affinity/selector" in condition.get("message", "")
        for pod in _pods(lab, name)
        for condition in pod["status"].get("conditions", ())
    )


@pytest.mark.trap(18)
def test_pods_run_on_machines_of_the_kind(lab: Lab, machines: list[str]) -> None:
    h100, a100, unlabelled = machines
    _launch(lab, "hopper", "H100:8", nodes=2)
    wait_for("one H100 pod", lambda: _machines_of(lab, "hopper") == [h100], PLACED_SECONDS)
    wait_for("the other to wait", lambda: _is_refused(lab, "hopper"), PLACED_SECONDS)

    _launch(lab, "ampere", "A100-80:8", nodes=1)
    wait_for("an A100 pod", lambda: _machines_of(lab, "ampere") == [a100], PLACED_SECONDS)

    lab.change_target(accelerators={"L40S": []})
    _launch(lab, "any", "L40S:8", nodes=1)
    wait_for("a pod of any kind", lambda: _machines_of(lab, "any") == [unlabelled], PLACED_SECONDS)
    assert _machines_of(lab, "hopper") == [h100], "the other still waits"


@pytest.mark.long("waits until each kind has been tried")
@pytest.mark.timeout(400)
def test_a_run_falls_back_to_the_next_kind_as_a_whole_and_says_so(
    lab: Lab, machines: list[str]
) -> None:
    """Of H100s there is one machine, of A100s there are two, and the run needs two. There is no GPU
    to train on, so its pods wait before they begin; its coordinator does the rest."""
    h100, a100, unlabelled = machines
    lab.cluster.api.patch(
        f"/api/v1/nodes/{unlabelled}", {"metadata": {"labels": {GKE: "nvidia-a100-80gb"}}}
    )
    waits = ["sh", "-c", "trap 'exit 1' TERM; sleep 1000 & wait"]
    before = {"name": "waits", "image": lab.cluster.image, "command": waits}
    scarcity = {"give_back_after": "10s", "try_again_after": "5s"}
    lab.change_target({"init_containers": [before]}, scarcity=scarcity)
    options = ("--set", "resources.accelerators=[H100:8, A100-80:8]", "--set", "precision=fp32")
    try:
        with lab.typed("run", "--on", "lab", "--set", "resources.nodes=2..3", *options) as command:
            wait_for("an H100", lambda: _machines_of(lab, "it") == [h100], 120)
            assert lab.status()["cluster"]["accelerators"] == "H100:8"
            both = {a100, unlabelled}
            wait_for("A100s", lambda: set(_machines_of(lab, "it")) == both, 120)
            assert lab.status()["cluster"]["accelerators"] == "A100-80:8"
            assert "devices     A100-80:8" in lab.headway("status").stdout
            assert "A100-80:8" in lab.headway("list", "--on", "lab").stdout
            assert command.interrupt() == 130, command.output
        events = {event["event"]: event for event in reversed(lab.directory("it").history())}
        assert (events["gave_back"]["held"], events["gave_back"]["needed"]) == (1, 2)
        assert events["tries_again"]["accelerators"] == "A100-80:8"
    finally:
        label = {"metadata": {"labels": {GKE: None}}}
        lab.cluster.api.patch(f"/api/v1/nodes/{unlabelled}", label)
