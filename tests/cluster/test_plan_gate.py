"""`headway run --on` refuses by its plan what does not fit or breaks its budget, before anything is
prepared or uploaded; `--anyway` launches it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster_tool.cluster import Cluster
from headway.kube.device_labels import PRODUCT
from support.lab import Lab
from support.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(400),
    pytest.mark.long("what is refused and why is in tests/unit/cli/test_plan_gate.py"),
]
DEVICE = "nvidia.com/gpu"
ON_L4 = [
    *("--nodes", "1", "--set", "resources.accelerators=L4:1", "--set", "precision=bf16"),
    *("--set", "data.train.tokenizer.train.vocab=400"),
]
HUGE = ["--set", "batch={global: 4000000, micro: 4000000}"]
"""Weights and optimizer state fit, which `check` looks at; what a step keeps does not."""
POOR = ["--set", "budget.usd=0.01"]


@pytest.fixture
def l4(own_cluster: Cluster) -> Iterator[str]:
    """Name of a machine that says it has an L4."""
    name = own_cluster.nodes[0].name
    path = f"/api/v1/nodes/{name}"

    def say(count: str | None, label: str | None) -> None:
        room = {DEVICE: count}
        own_cluster.api.patch(path, {"metadata": {"labels": {PRODUCT: label}}})
        own_cluster.api.patch(f"{path}/status", {"status": {"capacity": room, "allocatable": room}})

    say("1", "NVIDIA-L4")
    try:
        yield name
    finally:
        say(None, None)


def refused(lab: Lab, *options: str) -> str:
    """What is said; nothing was prepared or uploaded. A pod has looked into the claim for a run
    that has begun, and goes."""
    said = lab.headway("run", "--on", "lab", *ON_L4, *options, expect=4).stderr
    wait_for("nothing to be left", lambda: lab.objects() == [], 120)
    assert not (lab.folder / "prepared").exists()
    assert not lab.shared.exists() or list(lab.shared.iterdir()) == []
    assert "to run it all the same: --anyway" in said
    return said


@pytest.mark.parametrize(
    ("options", "words"),
    [(HUGE, "it does not fit on L4:1: "), (POOR, "it is over its budget on L4:1: ")],
    ids=["memory", "budget"],
)
def test_what_the_plan_refuses_is_launched_anyway(
    lab: Lab, l4: str, options: list[str], words: str
) -> None:
    lab.change_target(prices={"L4": 0.8})
    assert words in refused(lab, *options)
    with lab.typed("run", "--on", "lab", *ON_L4, *options, "--anyway") as command:
        command.wait_for(words, 60)
        command.wait_for("prepared train", 60)
        placed = wait_for(
            "its pod on the machine with the device",
            lambda: [pod["spec"]["nodeName"] for pod in lab.pods() if "nodeName" in pod["spec"]],
            120,
        )
        assert placed == [l4]
        command.interrupt()
    (pod,) = lab.pods()
    assert pod["spec"]["containers"][0]["resources"]["limits"][DEVICE] == "1"
