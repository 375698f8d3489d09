"""`H100:8` means machines with H100s, however the cluster labels them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.kube.device_labels import (
    BOARDS,
    GKE,
    PRODUCT,
    Alternative,
    device_alternatives,
)
from headway.kube.scheduling_gate import patch_of_gate
from headway.plan.accelerators import DEVICES, find_device

Render = Callable[..., list[dict[str, Any]]]
KARPENTER = "karpenter.k8s.aws/instance-gpu"
AUTO_MODE = "eks.amazonaws.com/instance-gpu"


def fits(labels: dict[str, str], alternatives: list[Alternative] | None) -> bool:
    """As the scheduler decides."""
    assert alternatives is not None
    return any(
        all(labels.get(one["key"]) in one["values"] for one in alternative)
        for alternative in alternatives
    )


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("H100", {PRODUCT: "NVIDIA-H100-80GB-HBM3"}),
        ("h100", {GKE: "nvidia-h100-mega-80gb"}),
        ("H100", {f"{KARPENTER}-name": "h100"}),
        ("H100", {f"{AUTO_MODE}-name": "h100"}),
        ("H100", {PRODUCT: "NVIDIA-H100-PCIe"}),
        ("H100-PCIe", {PRODUCT: "NVIDIA-H100-PCIe"}),
        ("H100-SXM", {PRODUCT: "NVIDIA-H100-80GB-HBM3"}),
        ("A100-80", {PRODUCT: "NVIDIA-A100-80GB-PCIe"}),
        ("A100-80GB", {f"{KARPENTER}-name": "a100", f"{KARPENTER}-memory": "81920"}),
        ("A100", {f"{KARPENTER}-name": "a100", f"{KARPENTER}-memory": "40960"}),
        ("A100", {PRODUCT: "NVIDIA-A100-SXM4-80GB"}),
        ("L4", {f"{AUTO_MODE}-name": "l4", f"{AUTO_MODE}-memory": "22888"}),
        ("gpu", {}),
    ],
)
def test_machines_that_have_it(kind: str, labels: dict[str, str]) -> None:
    assert fits(labels, device_alternatives(kind, {}))


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("H100", {}),
        ("H100", {PRODUCT: "NVIDIA-A100-SXM4-80GB"}),
        ("H100", {PRODUCT: "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"}),
        ("H100", {PRODUCT: "NVIDIA-H100-80GB-HBM3-SHARED"}),
        ("H100-SXM", {PRODUCT: "NVIDIA-H100-PCIe"}),
        ("H100-PCIe", {f"{KARPENTER}-name": "h100"}),
        ("A100-80", {PRODUCT: "NVIDIA-A100-SXM4-40GB"}),
        ("A100-80", {f"{KARPENTER}-name": "a100", f"{KARPENTER}-memory": "40960"}),
        ("A100-80", {f"{KARPENTER}-name": "a100"}),
        ("L4", {PRODUCT: "NVIDIA-L40S"}),
        ("L4", {f"{KARPENTER}-name": "l4", f"{KARPENTER}-memory": "2861"}),
    ],
)
def test_machines_that_have_not(kind: str, labels: dict[str, str]) -> None:
    assert not fits(labels, device_alternatives(kind, {}))


@pytest.mark.parametrize("kind", ["RTX4090", "A100-60GB", "H100-96GB"])
def test_kinds_that_are_not_in_the_table(kind: str) -> None:
    assert device_alternatives(kind, {}) is None


def test_every_known_device_can_be_asked_for() -> None:
    assert {device.name for device in DEVICES} <= set(BOARDS)


@pytest.mark.parametrize("name", [device.name for device in DEVICES])
def test_the_label_is_the_drivers_name_of_the_device(name: str) -> None:
    """GPU feature discovery writes the name that the driver reports, with dashes for blanks."""
    for product in BOARDS[name].products:
        device = find_device(product)
        assert device is not None
        assert device.name == name


@pytest.mark.parametrize("kind", ["A100-80GB", "a100-80"])
def test_labels_of_the_target_replace_ours(kind: str) -> None:
    found = device_alternatives(kind, {"A100-80": [{"a": "1", "b": "2"}, {"c": "3"}]})
    assert fits({"a": "1", "b": "2"}, found)
    assert fits({"c": "3"}, found)
    assert not fits({"a": "1"}, found)
    assert not fits({PRODUCT: "NVIDIA-A100-SXM4-80GB"}, found)


def test_labels_of_one_kind_leave_others_as_they_are() -> None:
    assert device_alternatives("A100", {"A100-40GB": []}) == device_alternatives("A100", {})


def test_a_target_may_say_that_no_label_is_needed() -> None:
    assert device_alternatives("H100", {"H100": []}) == [[]]


def test_every_alternative_keeps_off_spot_machines(render: Render, folder: Path) -> None:
    with (folder / "targets.yaml").open("a") as targets:
        targets.write("  spot_label: {capacity: spot}\n")
    job, *_ = render("resources.accelerators=H100:8")
    affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert len(terms) == 4
    for term in terms:
        off_windows, off_spot, device = term["matchExpressions"]
        assert off_windows["key"] == "kubernetes.io/os"
        assert off_spot == {"key": "capacity", "operator": "NotIn", "values": ["spot"]}
        assert device["operator"] == "In"


def test_lifting_a_gate_extends_every_alternative() -> None:
    patch = patch_of_gate(4, ("capacity", "spot"))
    assert [step["op"] for step in patch] == ["test", "add", "add", "add", "add", "remove"]
    paths = [step["path"] for step in patch[1:-1]]
    assert [path.split("/")[-3] for path in paths] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("gpu", "gpu"),
        ("GPU", "gpu"),
        ("H100-SXM", "H100"),
        ("H100", "H100-SXM"),
        ("A100-80", "A100-80GB"),
    ],
)
def test_labels_of_a_target_are_used_for_other_names_of_the_same_board(
    kind: str, named: str
) -> None:
    overrides = {named: [{"example.com/gpu": "mine"}]}
    assert fits({"example.com/gpu": "mine"}, device_alternatives(kind, overrides))
    assert not fits({}, device_alternatives(kind, overrides))


def test_labels_of_a_name_are_not_used_for_one_of_its_boards() -> None:
    overrides = {"A100": [{"example.com/gpu": "a100"}]}
    assert not fits({"example.com/gpu": "a100"}, device_alternatives("A100-80", overrides))


@pytest.mark.parametrize(
    ("override", "added", "says"),
    [
        ("RTX4090:2", "", True),
        ("RTX4090:2", "  accelerators: {RTX4090: [{gpu: rtx4090}]}\n", False),
        ("RTX4090:2", "  accelerators: {RTX4090: []}\n", False),
        ("H100:8", "", False),
        ("gpu:2", "", False),
        ("cpu:2", "", False),
    ],
)
def test_a_kind_that_nobody_knows_is_warned_of(
    render: Render,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    override: str,
    added: str,
    says: bool,
) -> None:
    with (folder / "targets.yaml").open("a") as targets:
        targets.write(added)
    render(f"resources.accelerators={override}")
    said = capsys.readouterr().err
    assert said == (
        "warning: --set resources.accelerators: Headway does not know how machines with RTX4090 "
        "are labelled: pods may run on any machine with nvidia.com/gpu\nhint: in the target: "
        "accelerators: {RTX4090: [{nvidia.com/gpu.product: VALUE}]}, or another label of such "
        "machines; [] if all of them are such\n"
        if says
        else ""
    )
