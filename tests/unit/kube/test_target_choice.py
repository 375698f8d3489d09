"""From what an API server answers to the whole block of a target. The answers of EKS, GKE and bare
metal are made up from documentation (`clusters/*.json` say so); those of the test cluster are its
own. `HEADWAY_WRITE_GOLDEN=1` writes the blocks anew."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from headway.errors import BadInput
from headway.kube.cluster_facts import cluster_facts
from headway.kube.target_choice import Wishes, target_lines
from headway.launch.cluster_look import ASKED
from headway.spec.target_file import Target
from headway.spec.target_text import TargetLine, read_targets, target_block

CLUSTERS = Path(__file__).parent / "clusters"
IMAGE = "registry.example/headway@sha256:" + "0" * 64
GIVEN: dict[str, dict[str, str]] = {
    "eks": {"image": IMAGE},
    "gke": {"image": IMAGE, "storage": "gs://bucket/headway", "machine": "a3-megagpu-8g"},
    "bare": {"image": IMAGE},
    "edit-only": {"image": IMAGE},
    "test-cluster": {"image": IMAGE},
}
"""Flags, by cluster."""


def answers(cluster: str, **other: Any) -> dict[str, Any]:
    found = json.loads((CLUSTERS / f"{cluster}.json").read_text())
    assert found.pop("origin")
    assert found.keys() == {*ASKED, "version"}
    return {**found, **other}


def chosen(
    cluster: str, flags: dict[str, str], others: dict[str, Target] | None = None, **other: Any
) -> list[TargetLine]:
    facts = cluster_facts(answers(cluster, **other))
    typed = {f"--{key}": value for key, value in flags.items()}
    wishes = Wishes("lab", "lab", "ml", **flags, typed=typed)  # type: ignore[arg-type]
    return target_lines(facts, wishes, others or {})


def values(lines: list[TargetLine]) -> dict[str, Any]:
    """Those that are not commented out."""
    return {".".join(line.path): line.value for line in lines if line.is_set}


def refusal(cluster: str, flags: dict[str, str], **other: Any) -> list[str]:
    """Problem, then hints."""
    with pytest.raises(BadInput) as caught:
        chosen(cluster, flags, **other)
    return str(caught.value).split("\nhint: ")


@pytest.mark.trap(21)
@pytest.mark.parametrize("cluster", GIVEN)
def test_the_whole_block(cluster: str) -> None:
    block = target_block("lab", chosen(cluster, GIVEN[cluster]), "written by headway target add")
    golden = CLUSTERS / f"{cluster}.yaml"
    if os.environ.get("HEADWAY_WRITE_GOLDEN"):
        golden.write_text(block)
    assert block == golden.read_text()
    target = read_targets(block, "lab").root["lab"]
    assert target.image is not None
    assert {"cpu", "memory"} <= target.pod.resources.keys()
    lines = block.splitlines()
    for above, line in pairwise(lines):
        assert "  # " in line or line.endswith(":") or above.lstrip().startswith("# "), line


@pytest.mark.parametrize("cluster", GIVEN)
def test_each_line_that_is_commented_out_is_valid_without_its_mark(cluster: str) -> None:
    lines = chosen(cluster, GIVEN[cluster])
    block = target_block("lab", lines, "written by a test")
    written = [line for line in lines if not line.is_set and len(line.path) < 3]
    assert {"prices", "secret", "coordinator", "pod"} <= {line.path[0] for line in written}
    for line in written:
        text = next(one for one in block.splitlines() if f"# {line.path[-1]}: " in one)
        read_targets(block.replace(text, text.replace("# ", "", 1)), "lab")


def test_several_machines_are_left_to_the_user() -> None:
    given = {"image": IMAGE, "storage": "gs://b/p"}
    problem, *commands = refusal("gke", given)
    assert problem == ("machines of 2 types have accelerators: a3-megagpu-8g, g2-standard-48")
    base = f"headway target add lab --image {IMAGE} --storage gs://b/p --machine"
    assert commands == [f"{base} {one}" for one in ("a3-megagpu-8g", "g2-standard-48", "cpu")]


def test_spot_machines_that_all_have_a_taint_are_tolerated() -> None:
    found = values(chosen("gke", {**GIVEN["gke"], "machine": "g2-standard-48"}))
    assert {one["key"] for one in found["pod.tolerations"]} == {
        "nvidia.com/gpu",
        "cloud.google.com/gke-spot",
    }


def test_everything_that_is_open_is_said_at_once_and_commands_are_whole() -> None:
    with pytest.raises(BadInput) as caught:
        chosen("gke", {})
    image, storage, machines = str(caught.value).split("\nerror: ")
    command = "headway target add lab --image ADDRESS@sha256:DIGEST --storage gs://BUCKET/PREFIX"
    assert image.split("\nhint: ")[1] == f"{command} --machine a3-megagpu-8g"
    # The same command is not said twice.
    assert "hint" not in storage
    assert machines.split("\nhint: ")[1:] == [
        f"{command} --machine g2-standard-48",
        f"{command} --machine cpu",
    ]


def test_claims_that_several_machines_can_write() -> None:
    both = answers("bare")["claims"]
    both["items"][1]["status"] = {"phase": "Bound", "capacity": {"storage": "1Ti"}}
    problem, *commands = refusal("bare", {"image": IMAGE}, claims=both)
    assert problem == "several claims can be written by many machines: scratch, old"
    assert [one.split()[-1] for one in commands] == ["claim:scratch", "claim:old"]


def test_the_image_of_another_target_of_the_context() -> None:
    other = Target.model_validate({"image": IMAGE, "coordinator": {"image": IMAGE}})
    found = values(chosen("eks", {}, {"old": other}))
    assert (found["image"], found["coordinator.image"]) == (IMAGE, IMAGE)


def test_queues() -> None:
    open_queue = {"metadata": {"name": "b"}, "status": {}}
    two = answers("bare")["queues"]
    two["items"].append(open_queue)
    problem, *commands = refusal("bare", {"image": IMAGE}, queues=two)
    assert problem == "the namespace has 2 queues: ml, b"
    assert [one.split()[-2:] for one in commands] == [["--queue", "ml"], ["--queue", "b"]]
    assert values(chosen("bare", {"image": IMAGE, "queue": "ml"}))["queue"] == "ml"


@pytest.mark.trap(18)
def test_a_machine_that_nobody_can_see_is_filled_from_the_table() -> None:
    found = values(chosen("edit-only", {"image": IMAGE, "machine": "p5.48xlarge"}))
    assert found["machine"] == "p5.48xlarge"
    assert (found["pod.resources.cpu"], found["pod.resources.memory"]) == (181, "1798Gi")
    assert found["resources.accelerators"] == "H100:8"
    assert found["pod.resources.vpc.amazonaws.com/efa"] == 32
    assert found["pod.env.NCCL_NET"] == "AWS Libfabric"


def test_a_machine_that_is_not_known() -> None:
    problem, command = refusal("edit-only", {"image": IMAGE, "machine": "p9"})
    assert problem.startswith("--machine p9: neither seen here nor known to Headway, which knows ")
    assert command == f"headway target add lab --image {IMAGE} --machine cpu"


def test_node_groups_without_labels_of_the_gpu_are_found_by_their_type() -> None:
    nodes = answers("eks")["nodes"]
    for node in nodes["items"]:
        labels = node["metadata"]["labels"]
        node["metadata"]["labels"] = {
            key: value for key, value in labels.items() if "karpenter" not in key
        }
    found = values(chosen("eks", {"image": IMAGE}, nodes=nodes))
    assert found["accelerators.H100"] == [{"node.kubernetes.io/instance-type": "p5.48xlarge"}]


def test_rdma_is_for_the_user_to_name() -> None:
    """Its resource has another name at every site."""
    lines = chosen("bare", {"image": IMAGE})
    assert not any("rdma" in key or "NCCL" in key for key in values(lines))
    assert any(line.path[-1] == "rdma/NAME" and "IPC_LOCK" in line.comment for line in lines)


def test_a_machine_that_has_lost_an_accelerator_is_no_type_of_its_own() -> None:
    nodes = answers("bare")["nodes"]
    nodes["items"][1]["status"]["allocatable"]["nvidia.com/gpu"] = "7"
    found = values(chosen("bare", {"image": IMAGE}, nodes=nodes))
    assert found["resources.accelerators"] == "H100:8"


def test_efa_is_asked_for_only_where_nodes_offer_it() -> None:
    """Without its device plugin pods would wait forever."""
    nodes = answers("eks")["nodes"]
    for node in nodes["items"]:
        node["status"]["allocatable"].pop("vpc.amazonaws.com/efa", None)
    lines = chosen("eks", {"image": IMAGE}, nodes=nodes)
    assert not any("efa" in key or "NCCL" in key for key in values(lines))
    assert any(line.path[-1] == "vpc.amazonaws.com/efa" and not line.is_set for line in lines)


def test_a_gpu_that_is_partitioned_is_of_no_kind() -> None:
    nodes = answers("bare")["nodes"]
    for node in nodes["items"]:
        labels = node["metadata"]["labels"]
        if "nvidia.com/gpu.product" in labels:
            labels["nvidia.com/gpu.product"] += "-MIG-1g.10gb"
            labels["node.kubernetes.io/instance-type"] = "p5.48xlarge"
    found = values(chosen("bare", {"image": IMAGE}, nodes=nodes))
    assert found["resources.accelerators"] == "gpu:8"


def test_machines_that_all_have_a_taint() -> None:
    nodes = answers("eks")["nodes"]
    nodes["items"] = [one for one in nodes["items"] if "taints" not in one["spec"]]
    for node in nodes["items"]:
        node["spec"]["taints"] = [{"key": "team", "value": "ml", "effect": "NoSchedule"}]
    found = values(chosen("eks", {"image": IMAGE}, nodes=nodes))
    assert (found["pod.resources.cpu"], found["pod.resources.memory"]) == (1, "2Gi")


def test_amounts_in_any_unit() -> None:
    nodes = answers("bare")["nodes"]
    for node in nodes["items"]:
        node["status"]["allocatable"] |= {"cpu": "224000m", "memory": "2e12"}
    found = values(chosen("bare", {"image": IMAGE}, nodes=nodes))
    assert (found["pod.resources.cpu"], found["pod.resources.memory"]) == (212, "1769Gi")
