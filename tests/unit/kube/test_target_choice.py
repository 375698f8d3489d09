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
import yaml

from headway.errors import BadInput
from headway.kube.cluster_facts import cluster_facts
from headway.kube.target_choice import target_choice
from headway.kube.undecided import Choice, Wishes
from headway.launch.cluster_look import ASKED, RIGHTS
from headway.spec.target_file import Target
from headway.spec.target_text import read_targets, target_block

CLUSTERS = Path(__file__).parent / "clusters"
IMAGE = "registry.example/headway@sha256:" + "0" * 64
GIVEN: dict[str, dict[str, str]] = {
    "eks": {"image": IMAGE},
    "gke": {"image": IMAGE, "storage": "gs://bucket/headway", "machine": "a3-megagpu-8g"},
    "bare": {"image": IMAGE},
    "edit-only": {},
    "test-cluster": {"image": IMAGE},
}
"""Flags, by cluster."""


def answers(cluster: str, **other: Any) -> dict[str, Any]:
    found = json.loads((CLUSTERS / f"{cluster}.json").read_text())
    assert found.pop("origin")
    assert found.keys() == {*ASKED, "user", "rights"}
    assert found["rights"].keys() == RIGHTS.keys()
    return {**found, **other}


def chosen(
    cluster: str, flags: dict[str, str], others: dict[str, Target] | None = None, **other: Any
) -> Choice:
    facts = cluster_facts(answers(cluster, **other))
    typed = {f"--{key}": value for key, value in flags.items()}
    wishes = Wishes("lab", "lab", "ml", **flags, typed=typed)  # type: ignore[arg-type]
    return target_choice(facts, wishes, others or {})


def values(choice: Choice) -> dict[str, Any]:
    return {".".join(line.path): line.value for line in choice.lines}


def refusal(cluster: str, flags: dict[str, str], **other: Any) -> list[str]:
    """Problem, then hints."""
    with pytest.raises(BadInput) as caught:
        chosen(cluster, flags, **other)
    return str(caught.value).split("\nhint: ")


@pytest.mark.trap(21)
@pytest.mark.parametrize("cluster", GIVEN)
def test_the_whole_block(cluster: str) -> None:
    choice = chosen(cluster, GIVEN[cluster])
    block = target_block("lab", choice.lines, "written by headway target add")
    text = block + "".join(f"# warned of: {note}\n" for note in choice.notes)
    golden = CLUSTERS / f"{cluster}.yaml"
    if os.environ.get("HEADWAY_WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
    target = read_targets(block, "lab").root["lab"]
    assert target.image is not None
    assert {"cpu", "memory"} <= target.pod.resources.keys()
    lines = block.splitlines()
    for above, line in pairwise(lines):
        assert "  # " in line or line.endswith(":") or above.lstrip().startswith("# "), line


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
    assert "class standard-rwx" in storage.split("\nhint: ")[1]
    assert "kubectl apply -n ml" in storage
    assert machines.split("\nhint: ")[1:] == [
        f"{command} --machine g2-standard-48",
        f"{command} --machine cpu",
    ]
    made = yaml.safe_load(storage.partition("echo '")[2].partition("'")[0])
    assert made["spec"]["storageClassName"] == "standard-rwx"


def test_claims_that_several_machines_can_write() -> None:
    both = answers("bare")["claims"]
    both["items"][1]["status"] = {"phase": "Bound", "capacity": {"storage": "1Ti"}}
    problem, *commands = refusal("bare", {"image": IMAGE}, claims=both)
    assert problem == "several claims can be written by many machines: scratch, old"
    assert [one.split()[-1] for one in commands] == ["claim:scratch", "claim:old"]


@pytest.mark.parametrize(
    ("storage", "says"),
    [
        ("claim:nobody", "the namespace has no claim nobody"),
        ("nobody", "the namespace has no claim nobody"),
    ],
)
def test_a_claim_that_is_not_there(storage: str, says: str) -> None:
    assert refusal("eks", {"image": IMAGE, "storage": storage})[0] == says


def test_a_claim_of_one_machine_is_warned_of() -> None:
    choice = chosen("eks", {"image": IMAGE, "storage": "claim:notebook"})
    assert choice.notes[0].startswith("claim notebook is ReadWriteOnce")


def test_an_image_by_tag_is_the_one_that_a_pod_has_pulled() -> None:
    tag = "111122223333.dkr.ecr.eu-central-1.amazonaws.com/notebook:3"
    found = values(chosen("eks", {"image": tag}))
    assert found["image"] == tag.replace(":3", "@sha256:" + "1" * 64)


def test_an_image_by_tag_that_nobody_has_pulled() -> None:
    problem, command, how = refusal("eks", {"image": "registry.example:5000/a/b:7"})
    assert problem.startswith("--image registry.example:5000/a/b:7 has no digest")
    assert command == "headway target add lab --image registry.example:5000/a/b@sha256:DIGEST"
    assert "crane digest registry.example:5000/a/b:7" in how


def test_the_image_of_another_target_of_the_context() -> None:
    other = Target.model_validate({"image": IMAGE, "coordinator": {"image": IMAGE}})
    found = values(chosen("eks", {}, {"old": other}))
    assert (found["image"], found["coordinator.image"]) == (IMAGE, IMAGE)


def test_images_of_a_run_whose_workers_have_no_headway() -> None:
    """Also once it has ended, and its coordinator's pod is gone."""
    core = "registry.example/headway-core@sha256:" + "2" * 64

    def made(component: str, image: str) -> dict[str, Any]:
        labels = {"app.kubernetes.io/managed-by": "headway"}
        labels["app.kubernetes.io/component"] = component
        spec = {"containers": [{"name": component, "image": image}]}
        metadata = {"name": f"headway-it-{component}", "labels": labels}
        return {"metadata": metadata, "spec": {"template": {"spec": spec}}}

    jobs, sets = {"items": [made("worker", IMAGE)]}, {"items": [made("coordinator", core)]}
    found = values(chosen("eks", {}, jobs=jobs, replica_sets=sets))
    assert (found["image"], found["coordinator.image"]) == (IMAGE, core)
    same = {"items": [made("coordinator", IMAGE)]}
    assert "coordinator.image" not in values(chosen("eks", {}, jobs=jobs, replica_sets=same))


def test_queues() -> None:
    open_queue = {"metadata": {"name": "b"}, "status": {}}
    two = answers("bare")["queues"]
    two["items"].append(open_queue)
    problem, *commands = refusal("bare", {"image": IMAGE}, queues=two)
    assert problem == "the namespace has 2 queues: ml, b"
    assert [one.split()[-2:] for one in commands] == [["--queue", "ml"], ["--queue", "b"]]
    assert refusal("bare", {"image": IMAGE, "queue": "x"})[0].endswith("no active queue x")
    assert values(chosen("bare", {"image": IMAGE, "queue": "ml"}))["queue"] == "ml"


@pytest.mark.trap(18)
def test_a_machine_that_nobody_can_see_is_filled_from_the_table() -> None:
    unlimited = {"quotas": None, "limit_ranges": None}
    found = values(chosen("edit-only", {"machine": "p5.48xlarge"}, **unlimited))
    assert found["machine"] == "p5.48xlarge"
    assert (found["pod.resources.cpu"], found["pod.resources.memory"]) == (181, "1798Gi")
    assert found["resources.accelerators"] == "H100:8"
    assert found["pod.resources.vpc.amazonaws.com/efa"] == 32
    assert found["pod.env.NCCL_NET"] == "AWS Libfabric"


def test_a_machine_that_is_not_known() -> None:
    problem, command, *_ = refusal("edit-only", {"machine": "p9"})
    assert problem == "--machine p9: neither seen here nor known to Headway"
    assert command == "headway target add lab --machine cpu"


def test_node_groups_without_labels_of_the_gpu_are_found_by_their_type() -> None:
    nodes = answers("eks")["nodes"]
    for node in nodes["items"]:
        labels = node["metadata"]["labels"]
        node["metadata"]["labels"] = {
            key: value for key, value in labels.items() if "karpenter" not in key
        }
    found = values(chosen("eks", {"image": IMAGE}, nodes=nodes))
    assert found["accelerators.H100"] == [{"node.kubernetes.io/instance-type": "p5.48xlarge"}]


def test_rdma_is_left_out_where_the_namespace_forbids_it() -> None:
    namespace = answers("bare")["namespace"]
    namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "restricted"
    choice = chosen("bare", {"image": IMAGE}, namespace=namespace)
    assert not any("rdma" in key for key in values(choice))
    assert any("IPC_LOCK" in note for note in choice.notes)


def test_accelerators_that_headway_does_not_run_on_are_seen() -> None:
    nodes = answers("eks")["nodes"]
    for node in nodes["items"]:
        allocatable = node["status"]["allocatable"]
        if allocatable.pop("nvidia.com/gpu", None):
            allocatable["aws.amazon.com/neuron"] = "16"
    facts = cluster_facts(answers("eks", nodes=nodes))
    assert facts.unsupported == ("AWS Trainium and Inferentia",)
    assert not facts.machines
    assert facts.without_plugin == ("p5.48xlarge",)


def test_what_is_free_now() -> None:
    """Pods that have ended have nothing."""
    [group] = cluster_facts(answers("eks")).machines
    assert (group.num_nodes, group.num_free) == (2, 8)
    [group] = cluster_facts(answers("eks", pods=None)).machines
    assert group.num_free is None


def test_pods_that_every_machine_runs_leave_less_for_a_worker() -> None:
    """Or it would never fit."""
    pods = answers("eks")["pods"]
    for name, kind in (("agent", "DaemonSet"), ("job", "Job")):
        resources = {"requests": {"cpu": "20", "memory": "100Gi"}}
        pods["items"].append(
            {
                "metadata": {"name": name, "ownerReferences": [{"kind": kind, "name": name}]},
                "spec": {
                    "nodeName": "ip-10-0-1-1.ec2.internal",
                    "containers": [{"name": "it", "resources": resources}],
                },
                "status": {"phase": "Running"},
            }
        )
    found = values(chosen("eks", {"image": IMAGE}, pods=pods))
    assert found["pod.resources.cpu"] == 162  # 95 % of 171.45
    assert found["pod.resources.memory"] == "1780Gi"


def test_a_coordinator_that_only_machines_with_accelerators_can_take() -> None:
    nodes = answers("eks")["nodes"]
    nodes["items"] = [one for one in nodes["items"] if "taints" in one["spec"]]
    found = values(chosen("eks", {"image": IMAGE}, nodes=nodes))
    assert found["coordinator.tolerations"] == found["pod.tolerations"]
    assert found["pod.resources.cpu"] <= 191.45 * 0.95 - 0.5


def test_a_machine_that_has_lost_an_accelerator_is_no_type_of_its_own() -> None:
    nodes = answers("bare")["nodes"]
    nodes["items"][1]["status"]["allocatable"]["nvidia.com/gpu"] = "7"
    choice = chosen("bare", {"image": IMAGE}, nodes=nodes)
    assert values(choice)["resources.accelerators"] == "H100:8"
    assert any("1 of 3 machines offer fewer than 8" in note for note in choice.notes)


def test_efa_is_asked_for_only_where_nodes_offer_it() -> None:
    """Without its device plugin pods would wait forever."""
    nodes = answers("eks")["nodes"]
    for node in nodes["items"]:
        node["status"]["allocatable"].pop("vpc.amazonaws.com/efa", None)
    choice = chosen("eks", {"image": IMAGE}, nodes=nodes)
    assert not any("efa" in key or "NCCL" in key for key in values(choice))
    assert any("offer no vpc.amazonaws.com/efa" in note for note in choice.notes)


def test_a_gpu_that_is_partitioned_is_of_no_kind() -> None:
    nodes = answers("bare")["nodes"]
    for node in nodes["items"]:
        labels = node["metadata"]["labels"]
        if "nvidia.com/gpu.product" in labels:
            labels["nvidia.com/gpu.product"] += "-MIG-1g.10gb"
            labels["node.kubernetes.io/instance-type"] = "p5.48xlarge"
    found = values(chosen("bare", {"image": IMAGE}, nodes=nodes))
    assert found["resources.accelerators"] == "gpu:8"


def pool(*requirements: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"requirements": list(requirements)}}}}


def test_machines_that_karpenter_would_make() -> None:
    """With none there, nothing says whether CPUs are meant."""
    nodes = answers("eks")["nodes"]
    nodes["items"] = [one for one in nodes["items"] if "taints" not in one["spec"]]
    gpu = {"key": "karpenter.k8s.aws/instance-gpu-name", "operator": "In", "values": ["h100"]}
    types = {
        "key": "node.kubernetes.io/instance-type",
        "operator": "In",
        "values": ["m5.large", "g5.xlarge"],
    }
    spot = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}
    pools = {"items": [pool(gpu, spot), pool(types), pool({"key": "x", "operator": "Exists"})]}
    problem, *commands = refusal("eks", {"image": IMAGE}, nodes=nodes, node_pools=pools)
    assert problem == (
        "no machine has an accelerator now, and Karpenter can make some: p5.4xlarge, p5.48xlarge, "
        "g5.xlarge"
    )
    assert [one.split()[-1] for one in commands] == [
        "p5.4xlarge",
        "p5.48xlarge",
        "g5.xlarge",
        "cpu",
    ]
    # Machines that are there go first.
    found = values(chosen("eks", {"image": IMAGE}, node_pools=pools))
    assert found["machine"] == "p5.48xlarge"


def test_no_pod_is_larger_than_the_namespace_allows() -> None:
    """Though machines are: a limit range would refuse it, and a quota hold it up."""
    limits = answers("edit-only")
    small = {key: limits[key] for key in ("quotas", "limit_ranges")}
    found = values(chosen("eks", {"image": IMAGE}, **small))
    assert (found["pod.resources.cpu"], found["pod.resources.memory"]) == (3, "6Gi")
    found = values(chosen("eks", {"image": IMAGE, "machine": "cpu"}, **small))
    assert (found["pod.resources.cpu"], found["pod.resources.memory"]) == (3, "6Gi")
    found = values(chosen("edit-only", {"machine": "p5.48xlarge"}))
    assert (found["pod.resources.cpu"], found["pod.resources.memory"]) == (3, "6Gi")


def test_machines_that_all_have_a_taint() -> None:
    nodes = answers("eks")["nodes"]
    nodes["items"] = [one for one in nodes["items"] if "taints" not in one["spec"]]
    for node in nodes["items"]:
        node["spec"]["taints"] = [{"key": "team", "value": "ml", "effect": "NoSchedule"}]
    choice = chosen("eks", {"image": IMAGE}, nodes=nodes)
    assert any("every machine has a taint" in note for note in choice.notes)


def test_accounts_of_an_administrator_are_used_whoever_asks() -> None:
    """A cloud may know them, for the bucket."""
    found = values(chosen("edit-only", {}, rights=dict.fromkeys(RIGHTS, True)))
    assert found["service_account.coordinator"] == "headway-coordinator"
    assert found["service_account.name"] == "headway-worker"


def test_an_account_that_is_not_there_yet_is_the_administrators_to_make() -> None:
    choice = chosen("edit-only", {}, accounts={"items": []})
    assert values(choice)["service_account.coordinator"] == "headway-coordinator"
    assert "headway target rbac lab | kubectl apply -f -" in choice.notes[0]


def test_a_version_that_runs_do_not_work_with_is_warned_of() -> None:
    old = {"major": "1", "minor": "29", "gitVersion": "v1.29.1"}
    notes = chosen("eks", {"image": IMAGE}, version=old).notes
    assert any("1.29, and runs need 1.31 or later" in note for note in notes)


def test_amounts_in_any_unit() -> None:
    nodes = answers("bare")["nodes"]
    for node in nodes["items"]:
        node["status"]["allocatable"] |= {"cpu": "224000m", "memory": "2e12"}
    found = values(chosen("bare", {"image": IMAGE}, nodes=nodes))
    assert (found["pod.resources.cpu"], found["pod.resources.memory"]) == (212, "1769Gi")
