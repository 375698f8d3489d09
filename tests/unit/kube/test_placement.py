"""A run completed for a target, and every refusal in its own words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.errors import HeadwayError, SpecError
from headway.kube.node_prices import NodePrices
from headway.kube.placement import whole_cores
from headway.spec.price_config import PriceConfig
from headway.spec.resolve import Resolved

Render = Callable[..., list[dict[str, Any]]]


def placed(objects: list[dict[str, Any]]) -> Resolved:
    return Resolved.model_validate_json(objects[1]["data"]["spec.json"])


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


@pytest.mark.parametrize(
    ("amount", "cores"),
    [("8", 8), ("7500m", 7), ("1500m", 1), ("500m", 1), ("0.5", 1), ("2.9", 2)],
)
def test_cores(amount: str, cores: int) -> None:
    assert whole_cores(amount) == cores


def test_threads_are_those_of_one_pod(render: Render) -> None:
    assert placed(render(nodes=64)).threads == 4
    assert placed(render("resources.accelerators=cpu:2")).threads == 2
    assert placed(render("threads=1")).threads == 1


def test_a_run_on_the_cpu_is_always_live(render: Render) -> None:
    """So that one node can become two; here it would restart."""
    assert placed(render(nodes=1)).is_live
    assert placed(render(nodes=1)).run.elastic == "live"
    assert placed(render("elastic=restart", nodes=1)).run.elastic == "restart"


def test_gpus_of_several_nodes_are_not_live_even_where_that_is_said(render: Render) -> None:
    with pytest.raises(SpecError, match="elastic: live is not supported with GPUs"):
        render("resources.accelerators=H100:8", "elastic=live")


def test_a_bucket_beside_a_claim_that_the_pods_own_identity_opens(
    render: Render, folder: Path
) -> None:
    with (folder / "targets.yaml").open("a") as targets:
        targets.write("  service_account: {annotations: {eks.amazonaws.com/role-arn: it}}\n")
    assert placed(render("storage=s3://mine/runs")).run_directory == "s3://mine/runs/wiki"


@pytest.mark.parametrize(
    ("override", "added", "says"),
    [
        ("resources.spot=none", "", "--set resources.spot"),
        ("batch.global=16", "  resources: {spot: none}\n", "targets.yaml:7:15"),
        ("resources.spot=none", "  spot_label: {spot: yes}\n", None),
        ("resources.spot=all", "", None),
        ("batch.global=16", "", None),
    ],
)
def test_nothing_is_kept_off_spot_machines_that_have_no_label(
    render: Render,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    override: str,
    added: str,
    says: str | None,
) -> None:
    with (folder / "targets.yaml").open("a") as targets:
        targets.write(added)
    render(override)
    said = capsys.readouterr().err
    if says is None:
        assert said == ""
    else:
        assert said == (
            f"warning: {says}: `spot: none` has no effect: lab has no spot_label that marks spot "
            "machines\nhint: spot_label: {karpenter.sh/capacity-type: spot}, or the label of such "
            "machines here\n"
        )


def test_gpus_of_one_node_restart_in_their_pod(render: Render) -> None:
    found = placed(render("resources={accelerators: H100:8}", nodes=1))
    assert (found.device, found.ranks_per_node, found.is_live) == ("cuda", 8, False)


def test_gpus_of_several_nodes_restart_together(render: Render) -> None:
    found = placed(render("resources.accelerators=H100:8"))
    assert (found.nodes, found.is_live, found.domain_ranks) == (2, False, 8)


@pytest.mark.parametrize(
    ("nodes", "asked", "found"),
    [("3", None, 3), ("2..16", None, 16), ("2..16", 16, 16), ("3", 5, 5)],
)
def test_nodes(render: Render, nodes: str, asked: int | None, found: int) -> None:
    assert placed(render(f"resources.nodes={nodes}", nodes=asked)).nodes == found


def test_the_target_gives_defaults_and_the_run_file_overrides_them(
    render: Render, folder: Path
) -> None:
    edit(folder / "run.yaml", "resources: {accelerators: cpu:1, nodes: 2}\n", "")
    with (folder / "targets.yaml").open("a") as targets:
        targets.write("  resources: {accelerators: cpu:4, nodes: 3}\n  budget: {usd: 5}\n")
        targets.write("  prices: {cpu: 0.4}\n")
    found = placed(render())
    assert (found.nodes, found.ranks_per_node, found.run.budget.usd) == (3, 4, 5)
    found = placed(render("resources.accelerators=cpu:2", "budget.hours=1"))
    assert (found.nodes, found.ranks_per_node) == (3, 2)
    assert (found.run.budget.usd, found.run.budget.hours) == (5, 1)


def test_without_accelerators_it_is_one_worker_on_the_cpu(render: Render, folder: Path) -> None:
    edit(folder / "run.yaml", "resources: {accelerators: cpu:1, nodes: 2}\n", "")
    found = placed(render())
    assert (found.device, found.nodes, found.ranks_per_node, found.threads) == ("cpu", 1, 1, 4)


RESOURCES = "resources: {cpu: 4, memory: 8Gi}"


@pytest.mark.trap(3, 14, 30)
@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            "  storage: {claim: shared-fs}\n",
            "",
            "targets.yaml:1:1: lab.storage: it is missing: checkpoints would be on a pod's disk, "
            "and lost with it\nhint: storage: {claim: NAME}, or s3://BUCKET/PREFIX",
        ),
        (
            "  image: registry.example/headway@sha256:" + "0" * 64 + "\n",
            "",
            "targets.yaml:1:1: lab.image: it is missing, and this version of Headway has no "
            "released image of its own\n"
            "hint: headway image build --push REGISTRY/NAME --on lab",
        ),
        (
            RESOURCES,
            "resources: {cpu: 4}",
            "targets.yaml:6:5: lab.pod.resources: memory is missing: nothing says how much a "
            "worker's pod gets\nhint: pod: {resources: {memory: 32Gi}}",
        ),
        (
            RESOURCES,
            "labels: {}",
            "targets.yaml:5:3: lab.pod.resources: cpu and memory are missing: nothing says how "
            "much a worker's pod gets\nhint: pod: {resources: {cpu: 8, memory: 32Gi}}",
        ),
        (
            RESOURCES,
            "resources: {cpu: 4Gi, memory: 8Gi}",
            "targets.yaml:6:17: lab.pod.resources.cpu: 4Gi is not a number of cores\n"
            "hint: cpu: 8, or 7500m",
        ),
        (
            RESOURCES,
            "resources: {cpu: 4, memory: 8Gi, nvidia.com/gpu: 8}",
            "targets.yaml:6:38: lab.pod.resources.nvidia.com/gpu: it is 8, and "
            "resources.accelerators is cpu:1\nhint: leave it out: devices are added as "
            "resources.accelerators says",
        ),
        (
            RESOURCES,
            "resources: {cpu: 4, memory: 8Gi, rdma/hca: 1}",
            "targets.yaml:6:38: lab.pod.resources.rdma/hca: rdma/hca is used by locking memory, "
            "which `security: restricted` does not allow\nhint: security: baseline, in a namespace "
            "that lets the capability IPC_LOCK through",
        ),
        (
            RESOURCES,
            RESOURCES + "\n    volumes:\n    - {name: scratch, hostPath: {path: /mnt}}",
            "targets.yaml:8:7: lab.pod.volumes.0: scratch is a hostPath volume, which `security: "
            "restricted` does not allow\nhint: mount a PersistentVolumeClaim; or security: "
            "baseline, if the namespace lets such volumes through",
        ),
        (
            RESOURCES,
            RESOURCES + "\n    env: {HOME: /root}",
            "targets.yaml:7:11: lab.pod.env.HOME: HOME is set by Headway\nhint: leave it out",
        ),
        (
            RESOURCES,
            RESOURCES + "\n    mounts: [{name: a, mountPath: /a}]",
            "targets.yaml:7:14: lab.pod.mounts.0: pod.volumes has no volume a",
        ),
        (
            RESOURCES,
            RESOURCES + "\n    volumes: [{name: a, emptyDir: {}}]"
            "\n    mounts: [{name: a, mountPath: /headway}]",
            "targets.yaml:8:14: lab.pod.mounts.0: a volume at /headway would hide /headway/key\n"
            "hint: mount it elsewhere, or only what is needed of it, below that folder",
        ),
    ],
)
def test_what_a_target_lacks_or_may_not_ask_for(
    render: Render, folder: Path, before: str, after: str, says: str
) -> None:
    edit(folder / "targets.yaml", before, after)
    with pytest.raises(HeadwayError) as caught:
        render()
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("added", "nodes", "says"),
    [
        (
            "secrets: [HF_TOKEN]\n",
            None,
            "targets.yaml:1:1: lab.secret: the run needs HF_TOKEN, and nothing says which Secret "
            "has it\nhint: secret: NAME, of a Secret with that key: kubectl create secret generic "
            "NAME --from-literal=HF_TOKEN=...",
        ),
        (
            "code: {path: src}\n",
            None,
            "run.yaml:7:8: code.path: there is no folder {folder}/src\n"
            "hint: paths are relative to the folder of the run file",
        ),
        (
            "",
            8193,
            "8193 nodes of 1 are 8193 workers; a run can have 8192",
        ),
    ],
)
def test_what_a_run_may_not_ask_for(
    render: Render, folder: Path, added: str, nodes: int | None, says: str
) -> None:
    with (folder / "run.yaml").open("a") as run:
        run.write(added)
    with pytest.raises(HeadwayError) as caught:
        render(nodes=nodes)
    assert str(caught.value) == says.replace("{folder}", str(folder))


@pytest.mark.parametrize(
    ("override", "nodes", "says"),
    [
        (
            "storage=s3://mine/runs",
            None,
            "--set storage: storage: s3://mine/runs is a bucket, and nothing gives the pods of a "
            "target whose storage is a claim credentials for it\nhint: leave it out: run "
            "directories go to the claim; or write it in the target: storage: "
            "{url: s3://mine/runs, secret: NAME}",
        ),
        (
            "resources.spot=above_min",
            None,
            "targets.yaml:1:1: lab.spot_label: it is missing: `spot: above_min` has to tell spot "
            "machines from others\nhint: spot_label: {karpenter.sh/capacity-type: spot}, or what "
            "such machines carry here",
        ),
        (
            "resources.nodes=2..16",
            17,
            "--nodes 17 is not within resources.nodes, 2..16\nhint: --set resources.nodes=2..17",
        ),
        (
            "resources.nodes=2..16",
            1,
            "--nodes 1 is not within resources.nodes, 2..16\nhint: --set resources.nodes=1..16",
        ),
        (
            "data.train=sets/wiki",
            None,
            "--set data.train: data.train: there is no folder {folder}/sets/wiki\n"
            "hint: paths are relative to the folder of the run file",
        ),
        (
            "model={from: ./weights}",
            None,
            "--set model: model.from: there is no folder {folder}/weights\n"
            "hint: paths are relative to the folder of the run file",
        ),
        (
            "data.train={sources: [a], tokenizer: ./words}",
            None,
            "--set data.train: data.train.tokenizer: there is no folder {folder}/words\n"
            "hint: paths are relative to the folder of the run file",
        ),
        (
            "data.train=config",
            None,
            "--set data.train: data.train: {folder}/config is not a prepared set: it has no "
            "manifest.json\nhint: check the path, or run the same headway data prepare again to "
            "resume it",
        ),
    ],
)
def test_what_an_override_may_not_ask_for(
    render: Render, folder: Path, override: str, nodes: int | None, says: str
) -> None:
    (folder / "config").mkdir()
    with pytest.raises(HeadwayError) as caught:
        render(override, nodes=nodes)
    assert str(caught.value) == says.replace("{folder}", str(folder))


def test_a_set_that_is_still_being_prepared(render: Render) -> None:
    with pytest.raises(
        HeadwayError, match=r"a.txt is on this machine, which pods cannot see, and pods cannot read"
    ):
        render("data.train={sources: [a.txt], tokenizer: gpt2, stream: true}", "train_for=10 steps")


def test_baseline_lets_more_through(render: Render, folder: Path) -> None:
    after = (
        "resources: {cpu: 4, memory: 8Gi, rdma/hca: 1}\n"
        "    volumes: [{name: scratch, hostPath: {path: /mnt}}]\n  security: baseline"
    )
    edit(folder / "targets.yaml", RESOURCES, after)
    job, *_, coordinator = render()
    adds = [
        one["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilities"]
        for one in (job, coordinator)
    ]
    assert adds == [{"drop": ["ALL"], "add": ["IPC_LOCK"]}, {"drop": ["ALL"]}]


@pytest.mark.parametrize("name", ["vpc.amazonaws.com/efa", "example.com/default"])
def test_other_devices_need_no_right_to_lock_memory(
    render: Render, folder: Path, name: str
) -> None:
    edit(folder / "targets.yaml", RESOURCES, f"resources: {{cpu: 4, memory: 8Gi, {name}: 1}}")
    render()


def rates_of(objects: list[dict[str, Any]]) -> NodePrices | None:
    """As the coordinator gets them."""
    (made,) = (one for one in objects if one["kind"] == "ReplicaSet")
    environment = made["spec"]["template"]["spec"]["containers"][0]["env"]
    found = [one["value"] for one in environment if one["name"] == "HEADWAY_PRICES"]
    return NodePrices.parse(found[0]) if found else None


def test_the_coordinator_knows_what_nodes_cost(render: Render, folder: Path) -> None:
    assert rates_of(render()) is None
    with (folder / "targets.yaml").open("a") as targets:
        targets.write(
            "  prices: {H100: {on_demand: 4, spot: 2}, A100: 3, cpu: 0.4}\n"
            "  spot_label: {spot: yes}\n"
        )
    assert rates_of(render()) == NodePrices(
        {"cpu:1": PriceConfig(on_demand=0.4)}, None, ("spot", "yes")
    )
    two = rates_of(render("resources.accelerators=[H100:8, A100-80:8]", "resources.spot=all"))
    assert two is not None
    assert two.kinds == {
        "H100:8": PriceConfig(on_demand=32.0, spot=16.0),
        "A100-80:8": PriceConfig(on_demand=24.0),
    }
    assert two.on_demand_below == 0
    above = rates_of(render("resources.nodes=2..4", "resources.spot=above_min"))
    assert above is not None
    assert above.on_demand_below == 2
    assert rates_of(render("resources.accelerators=L4:1")) is None, "it has no price"
    with pytest.raises(SpecError, match=r"there is no price of L4, and budget.usd is \$5.00"):
        render("resources.accelerators=L4:1", "budget.usd=5")
