"""What the devices of a machine or a target rule out, in the words a user reads: the same from
`check` and from `run`, before anything starts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headway.cli.device_check import require_devices_here, require_named_devices
from headway.cli.target_render import require_fit_on
from headway.errors import BadInput, Exit, SpecError
from headway.plan.accelerators import DEVICES
from headway.plan.unsupported_accelerators import FAMILIES
from headway.spec.load import load_run, load_target
from headway.spec.resolve import Hardware
from support.in_process import Headway

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "gpus.md"
GIB = 2**30
RUN = """\
version: 1
name: it
extends: llama2-7b
data: {train: "s3://data/wiki"}
"""
TARGET = (
    "lab:\n"
    "  kube: {namespace: ml}\n"
    "  image: registry.example/headway@sha256:" + "0" * 64 + "\n"
    "  storage: {claim: shared-fs}\n"
    "  pod: {resources: {cpu: 4, memory: 64Gi}}\n"
)
CPU = "hint: to run it on the CPU: --set resources.accelerators=cpu:1"
GPUS = (
    "hint: on a machine or target with GPUs: --set resources.accelerators=H100:2 --set shard=node"
)
FP16 = "hint: to train in fp16: --set precision=fp16"


def machine(gpus: int = 0, name: str | None = None, **more: object) -> Hardware:
    facts = {"memory_bytes": 2000 * GIB, "torch_version": "2.15.0", **more}
    return Hardware(cores=8, cuda_devices=gpus, device_name=name, **facts)  # type: ignore[arg-type]


def said(text: str, here: Hardware, nodes: int = 1, *overrides: str) -> str | None:
    """None: the run is not refused."""
    Path("run.yaml").write_text(RUN + text)
    try:
        require_devices_here(load_run(None, list(overrides)), here, nodes)
    except BadInput as error:
        return str(error)
    return None


# --- accelerators without code


@pytest.mark.parametrize(
    ("asked", "family"),
    [
        ("trn1:16", "AWS Trainium and Inferentia"),
        ("MI300X:8", "AMD GPUs (ROCm)"),
        ("tpu-v5e:4", "Google TPUs"),
        ("gaudi3:8", "Intel Gaudi"),
        ("xpu:1", "Intel GPUs (XPU)"),
    ],
)
def test_an_accelerator_that_headway_has_no_code_for(folder: Path, asked: str, family: str) -> None:
    assert said(f"resources: {{accelerators: {asked}}}\n", machine(8)) == (
        f"run.yaml:5:13: resources.accelerators: {asked} requested, but Headway does not run on "
        f"{family}\n{CPU}"
    )


@pytest.mark.parametrize(
    ("here", "problem"),
    [
        (
            machine(unsupported_devices=("AWS Trainium and Inferentia",)),
            "this machine has AWS Trainium and Inferentia, and Headway does not run on them",
        ),
        (
            machine(torch_version="2.15.0+rocm6.4"),
            "torch 2.15.0+rocm6.4 is built for AMD GPUs (ROCm), and Headway does not run on them",
        ),
        (
            machine(8, "NVIDIA H100 80GB HBM3", torch_version="2.15.0+cpu"),
            "this machine has 8 GPUs, but torch 2.15.0+cpu is built without CUDA",
        ),
    ],
)
def test_no_accelerator_is_left_unused_in_silence(
    folder: Path, here: Hardware, problem: str
) -> None:
    assert said("", here) == f"run.yaml:1:1: {problem}\n{CPU}"
    assert said("resources: {accelerators: cpu:1}\n", here) is None, "the hint works"


def test_a_machine_with_gpus_and_something_else_uses_the_gpus(folder: Path) -> None:
    both = machine(8, "NVIDIA H100 80GB HBM3", unsupported_devices=("Google TPUs",))
    assert said("", both) is None


# --- devices that are not there


@pytest.mark.parametrize(
    ("here", "asked", "has", "hint"),
    [
        (machine(), "H100:8", "no GPU", CPU),
        (
            machine(1),
            "H100:8",
            "1 GPU",
            "hint: to run it on the GPU of this machine: --set resources.accelerators=H100:1",
        ),
        (
            machine(4),
            "H100:8",
            "4 GPUs",
            "hint: to run it on the GPUs of this machine: --set resources.accelerators=H100:4",
        ),
    ],
)
def test_fewer_devices_than_ranks(
    folder: Path, here: Hardware, asked: str, has: str, hint: str
) -> None:
    assert said(f"resources: {{accelerators: {asked}}}\n", here) == (
        f"run.yaml:5:13: resources.accelerators: {asked} requested, but this machine has {has}\n"
        f"{hint}"
    )


def test_fewer_devices_than_the_ranks_of_all_nodes(folder: Path) -> None:
    assert said("", machine(8), 2) == (
        "2 nodes with 8 devices each need 16, but this machine has 8\n"
        "hint: to simulate the nodes on the CPU: --set resources.accelerators=cpu:1"
    )


# --- offloaded activations

OFFLOAD = "memory: {offload: activations}\n"


def test_on_the_cpu_there_is_nothing_to_offload_to(folder: Path) -> None:
    assert said(OFFLOAD, machine()) == (
        "run.yaml:5:10: memory.offload: activations needs a GPU: on the CPU they are in the host's "
        "memory already\nhint: --set memory.offload=none"
    )
    assert said(OFFLOAD, machine(), 1, "memory.offload=none") is None, "the hint works"


def test_offloaded_activations_are_counted_against_the_hosts_memory(folder: Path) -> None:
    # 4 sequences of 4,096 tokens and a width of 4,096 in bf16 are 128 MiB; 32 blocks on 8 devices.
    gpus = "NVIDIA H100 80GB HBM3"
    needed = "memory.offload: the inputs of 32 blocks of 8 devices need at least 32.0 GiB of"
    found = said(OFFLOAD, machine(8, gpus, memory_bytes=31 * GIB), 1, "batch.micro=4")
    assert found == (
        f"run.yaml:5:10: {needed} the host's memory; 31.0 GiB is available\n"
        "hint: to offload less: --set batch.micro=1"
    )
    assert said(OFFLOAD, machine(8, gpus, memory_bytes=32 * GIB), 1, "batch.micro=4") is None
    less = machine(8, gpus, memory_bytes=8 * GIB)
    assert said(OFFLOAD, less, 1, "batch.micro=1") is None, "the hint works"
    odd = said(OFFLOAD, machine(8, gpus, memory_bytes=31 * GIB), 1, "batch.micro=3")
    assert odd is not None, "pinned memory is rounded up to a power of two"
    assert "at least 32.0 GiB" in odd


def test_offloaded_activations_are_counted_against_the_memory_of_pods(folder: Path) -> None:
    Path("targets.yaml").write_text(TARGET.replace("64Gi", "12Gi"))
    asked = "resources: {accelerators: H100:8}\n"
    (folder / "run.yaml").write_text(RUN + OFFLOAD + asked)
    with pytest.raises(SpecError, match=r"need at least 32\.0 GiB .*; 12\.0 GiB is available"):
        require_fit_on(load_run(), load_target("lab", folder))
    (folder / "run.yaml").write_text(RUN + asked)
    require_fit_on(load_run(), load_target("lab", folder))


# --- bf16


@pytest.mark.parametrize(
    ("text", "here", "where", "name"),
    [
        ("precision: bf16\n", machine(8, "Tesla T4"), "run.yaml:5:1", "Tesla T4"),
        ("resources: {accelerators: T4:8}\n", machine(8), "run.yaml:5:13", "T4"),
        ("resources: {accelerators: V100-32GB:8}\n", machine(8), "run.yaml:5:13", "V100-32GB"),
        # Written nowhere: the preset's.
        ("", machine(8, "Tesla V100-SXM2-32GB"), "run.yaml:1:1", "Tesla V100-SXM2-32GB"),
        # By name, even where there is no GPU.
        ("resources: {accelerators: V100:8}\n", machine(), "run.yaml:5:13", "V100"),
        ("resources: {accelerators: gpu:8}\n", machine(8, "Tesla T4"), "run.yaml:5:13", "Tesla T4"),
    ],
)
def test_bf16_on_a_device_without_it(
    folder: Path, text: str, here: Hardware, where: str, name: str
) -> None:
    assert said(text, here) == (
        f"{where}: precision: bf16 requested, but the {name} has no bf16 units\n{FP16}"
    )


def test_fp16_is_what_such_a_device_is_offered(folder: Path) -> None:
    small = "model={type: gpt2, config: {vocab_size: 50257}}"
    for precision in ("fp16", "fp32"):
        assert said("", machine(8, "Tesla T4"), 1, small, f"precision={precision}") is None
    assert said("", machine(8, "NVIDIA L4"), 1, small) is None
    assert said("", machine(8, "Some New GPU"), 1, small) is None, "not in the table"
    assert said("", machine(8), 1, small) is None, "the driver tells no name"
    assert said("", machine(), 1, small) is None, "CPUs compute in bf16"


def test_fp16_on_the_cpu_is_refused_before_data_is_prepared(headway: Headway, folder: Path) -> None:
    text = RUN.replace("llama2-7b", "gpt2-small") + "precision: fp16\n"
    (folder / "run.yaml").write_text(text + "resources: {accelerators: cpu:1}\n")
    for command in ("check", "run"):
        assert headway(command).err == (
            "error: run.yaml:5:1: precision: fp16 needs a GPU\nhint: --set precision=bf16\n"
        )


# --- state that cannot fit

STATE = "weights, gradients and optimizer state need at least"


@pytest.mark.parametrize(
    ("text", "here", "problem"),
    [
        # 6,738,415,616 parameters; 16 bytes each sharded, 18 whole.
        (
            "resources: {accelerators: H100:1}\n",
            machine(8),
            f"run.yaml:5:13: {STATE} 113.0 GiB on each H100, which has at most 96 GiB\n"
            "hint: to shard it: --set resources.accelerators=H100:2 --set shard=node",
        ),
        (
            "resources: {accelerators: A100:8}\nshard: none\n",
            machine(8),
            f"run.yaml:5:13: {STATE} 113.0 GiB on each A100, which has at most 80 GiB\n"
            "hint: to shard it: --set resources.accelerators=A100:8 --set shard=node",
        ),
        (
            "resources: {accelerators: L4:2}\n",
            machine(8),
            f"run.yaml:5:13: {STATE} 50.2 GiB on each L4, which has at most 24 GiB\n"
            "hint: to shard it: --set resources.accelerators=L4:8 --set shard=node",
        ),
        (
            "",
            machine(2, "NVIDIA A100-SXM4-40GB"),
            f"run.yaml:3:1: {STATE} 50.2 GiB on each NVIDIA A100-SXM4-40GB, which has at most "
            "40 GiB\n"
            "hint: to shard it: --set resources.accelerators=A100-40GB:4 --set shard=node",
        ),
        (
            "",
            machine(memory_bytes=23 * GIB),
            f"run.yaml:3:1: {STATE} 113.0 GiB; 23.0 GiB is available\n{GPUS}",
        ),
        (
            "resources: {accelerators: cpu:2}\nshard: none\n",
            machine(memory_bytes=200 * GIB),
            "run.yaml:5:13: weights, gradients and optimizer state of all 2 workers need at least "
            "225.9 GiB; 200.0 GiB is available\n"
            "hint: to start one worker: --set resources.accelerators=cpu:1",
        ),
    ],
)
def test_state_that_does_not_fit(folder: Path, text: str, here: Hardware, problem: str) -> None:
    assert said(text, here) == problem
    as_hinted = re.findall(r"--set (\S+)", problem)
    assert said(text, machine(8, memory_bytes=here.memory_bytes), 1, *as_hinted) is None


def test_one_node_is_hinted_at_where_several_do_not_fit(folder: Path) -> None:
    assert said("", machine(memory_bytes=300 * GIB), 3) == (
        "run.yaml:3:1: weights, gradients and optimizer state of all 3 workers need at least "
        "338.9 GiB; 300.0 GiB is available\n"
        "hint: to start one worker: --nodes 1 --set resources.accelerators=cpu:1"
    )


@pytest.mark.parametrize("keys", ["", "shard: all\n"])
def test_elsewhere_there_are_as_many_nodes_as_it_asks_for(folder: Path, keys: str) -> None:
    """113 GiB over 16 devices of 16 GB, each in a node of its own."""
    nodes = "precision: fp16\nresources: {accelerators: 'T4:1', nodes: 16}\n"
    (folder / "run.yaml").write_text(RUN + nodes + keys)
    require_named_devices(load_run())
    with pytest.raises(SpecError):
        require_named_devices(load_run(None, ["resources.nodes=2"]))


def test_a_saved_model_is_counted_by_its_config(folder: Path) -> None:
    (folder / "saved").mkdir()
    config = {"model_type": "llama", "vocab_size": 32000, "torch_dtype": "float16"}
    (folder / "saved" / "config.json").write_text(json.dumps(config))
    text = "model: {from: saved}\n"
    small = machine(memory_bytes=23 * GIB)
    assert said(text, small) == (f"run.yaml:5:1: {STATE} 113.0 GiB; 23.0 GiB is available\n{GPUS}")
    many = machine(8, "NVIDIA H100 80GB HBM3")
    assert said(text, many) is None, "it is sharded over them"
    assert said(f"{text}shard: none\n", many) == (
        f"run.yaml:5:1: {STATE} 113.0 GiB on each NVIDIA H100 80GB HBM3, which has at most 80 GiB\n"
        "hint: to shard it: --set resources.accelerators=H100:8 --set shard=node"
    )
    smaller = "model.config={num_hidden_layers: 2}"
    assert said(text, small, 1, smaller) is None
    for unknown in (
        '{"model_type": "other"}',
        "[]",
        "{",
        '{"model_type": "llama", "vocab_size": "x"}',
    ):
        (folder / "saved" / "config.json").write_text(unknown)
        assert said(text, small) is None


@pytest.mark.parametrize(
    ("text", "here"),
    [
        ("resources: {accelerators: H100:2}\n", machine(8)),
        ("resources: {accelerators: L4:8}\n", machine(8)),
        ("", machine(8, "NVIDIA A100-SXM4-40GB")),
        # 113 GiB whole: in an H200, and in memory.
        ("resources: {accelerators: H200:1}\n", machine(8)),
        ("", machine(memory_bytes=114 * GIB)),
        # What is not known is not refused.
        ("resources: {accelerators: gpu:1}\n", machine(8)),
        ("", machine(1, "Some New GPU")),
        ("", machine(memory_bytes=None)),
        ("model: {from: meta-llama/Llama-2-7b-hf}\n", machine(memory_bytes=GIB)),
    ],
)
def test_state_that_may_fit_is_not_refused(folder: Path, text: str, here: Hardware) -> None:
    assert said(text, here) is None


def test_a_model_too_large_for_a_node_of_the_devices_it_asks_for(folder: Path) -> None:
    (folder / "run.yaml").write_text(
        RUN.replace("7b", "70b") + "resources: {accelerators: H100:8}\n"
    )
    with pytest.raises(BadInput) as caught:
        require_devices_here(load_run(None), machine(8), 1)
    assert str(caught.value) == (
        f"run.yaml:5:13: {STATE} 128.5 GiB on each H100, which has at most 96 GiB\n"
        "hint: on 3 nodes of a target: --set resources.nodes=3 --set resources.accelerators=H100:8 "
        '--set "shard=3 nodes"'
    )
    require_devices_here(load_run(None, ["shard=3 nodes"]), machine(24), 3)
    with pytest.raises(BadInput) as caught:
        require_devices_here(load_run(None, ["model.config.num_hidden_layers=9999"]), machine(8), 1)
    assert caught.value.hint == (
        "use a smaller model: no node in Headway's table of devices holds this one"
    )


# --- the same from every command

REFUSED = [
    ("resources: {accelerators: MI300X:8}\n", "resources.accelerators: MI300X:8 requested, but"),
    ("resources: {accelerators: T4:8}\n", "precision: bf16 requested, but the T4 has no"),
    ("resources: {accelerators: H100:1}\n", f"{STATE} 113.0 GiB on each H100"),
]


@pytest.mark.parametrize(("text", "_"), REFUSED)
def test_the_guide_has_the_words(headway: Headway, folder: Path, text: str, _: str) -> None:
    (folder / "run.yaml").write_text(RUN + text)
    assert f"\n{headway('check').err}" in GUIDE.read_text()


def test_the_guide_has_every_device() -> None:
    table = GUIDE.read_text().partition("## Device by device")[2].partition("##")[0]
    for name in [*(device.name for device in DEVICES), *(family.name for family in FAMILIES)]:
        assert re.search(rf"{re.escape(name)}[ ,]", table), name


@pytest.mark.parametrize(("text", "problem"), REFUSED)
def test_check_and_run_say_the_same_here_and_on_a_target(
    headway: Headway, folder: Path, text: str, problem: str
) -> None:
    (folder / "run.yaml").write_text(RUN + text)
    (folder / "targets.yaml").write_text(TARGET)
    errors = set()
    for command in (
        ["check"],
        ["run"],
        ["check", "--on", "lab"],
        ["run", "--on", "lab", "--dry-run"],
    ):
        done = headway(*command)
        assert done.exit_code == Exit.BAD_INPUT, command
        errors.add(done.err)
    assert len(errors) == 1
    assert errors.pop().startswith(f"error: run.yaml:5:13: {problem}")
    assert not (folder / "runs").exists()


def test_a_targets_own_devices_are_refused_in_its_own_file(headway: Headway, folder: Path) -> None:
    (folder / "run.yaml").write_text(RUN)
    for added, says in (
        (
            "  resources: {accelerators: T4:8}\n",
            "targets.yaml:6:15: precision: bf16 requested, but the T4 has no bf16 units\n" + FP16,
        ),
        (
            "  resources: {accelerators: trn1:16}\n",
            "targets.yaml:6:15: resources.accelerators: trn1:16 requested, but Headway does not "
            "run on AWS Trainium and Inferentia\n" + CPU,
        ),
        (
            "",  # 64 GiB a pod
            f"run.yaml:3:1: {STATE} 113.0 GiB; 64.0 GiB is available\n{GPUS}",
        ),
    ):
        (folder / "targets.yaml").write_text(TARGET + added)
        for command in (["check", "--on", "lab"], ["run", "--on", "lab", "--dry-run"]):
            assert headway(*command).err == f"error: {says}\n"


def test_a_pod_with_a_device_of_another_maker(headway: Headway, folder: Path) -> None:
    (folder / "run.yaml").write_text(RUN + "resources: {accelerators: gpu:8}\n")
    other = TARGET.replace("memory: 64Gi}", "memory: 640Gi}, device: amd.com/gpu")
    (folder / "targets.yaml").write_text(other)
    said = headway("check", "--on", "lab")
    assert (said.exit_code, said.err) == (
        Exit.BAD_INPUT,
        "error: targets.yaml:5:45: lab.pod.device: amd.com/gpu requests AMD GPUs (ROCm), and "
        f"Headway does not run on them\n{CPU}\n",
    )
    assert headway("check", "--on", "lab", "--set", "resources.accelerators=cpu:1").exit_code == 0


@pytest.mark.trap(18)
@pytest.mark.parametrize(
    ("run", "target", "says"),
    [
        (
            "resources: {accelerators: H100:8}\n",
            "  machine: p4d.24xlarge\n",
            "run.yaml:5:13: resources.accelerators: H100:8 requested, but a machine of the target "
            "(p4d.24xlarge) has A100-40GB:8\nhint: to run it there: --set "
            "resources.accelerators=A100-40GB:8; machines that have H100:8: p5.48xlarge, "
            "a3-highgpu-8g, a3-megagpu-8g, hgx-h100; a target of such: headway target add NAME "
            "--machine p5.48xlarge",
        ),
        (
            "",
            "  machine: g5.xlarge\n  resources: {accelerators: A10G:4}\n",
            "targets.yaml:7:15: resources.accelerators: A10G:4 requested, but a machine of the "
            "target (g5.xlarge) has A10G:1\nhint: to run it there: --set "
            "resources.accelerators=A10G:1; machines that have A10G:4: g5.12xlarge, g5.24xlarge, "
            "g5.48xlarge; a target of such: headway target add NAME --machine g5.12xlarge",
        ),
        (
            "",
            "  machine: p4d.24xlage\n",
            "targets.yaml:6:3: machine: p4d.24xlage is not a machine that Headway knows\n"
            "hint: did you mean p4d.24xlarge?",
        ),
        (
            "resources: {accelerators: A10G:1}\n",
            "  machine: g5.xlarge\n",
            "targets.yaml:5:29: pod.resources.memory: more than a machine of the target has "
            "(g5.xlarge: 15.2 GiB)\nhint: memory: 13Gi",
        ),
        (
            "",
            "  prices: {cpu: 0.4, H10O: 4}\n",
            "targets.yaml:6:22: prices.H10O: H10O is not a device that Headway knows\n"
            "hint: did you mean H100?",
        ),
        (
            "resources: {accelerators: T4:4}\nprecision: fp16\nbudget: {usd: 500}\n",
            "  prices: {A10G: 4}\n",
            "targets.yaml:6:3: lab.prices: there is no price of T4, and budget.usd is $500.00: "
            "nothing says what the run has cost\nhint: in the target: prices: {T4: {on_demand: "
            "DOLLARS, spot: DOLLARS}}, per device hour; stated on public pages: $0.98 at AWS "
            "(g4dn.12xlarge, us-east-1, 2026-07-20); or remove budget.usd",
        ),
    ],
)
def test_a_run_for_another_machine_than_the_targets(
    headway: Headway, folder: Path, run: str, target: str, says: str
) -> None:
    (folder / "run.yaml").write_text(RUN + run)
    (folder / "targets.yaml").write_text(TARGET + target)
    for command in (["check", "--on", "lab"], ["run", "--on", "lab", "--dry-run"]):
        said = headway(*command)
        assert (said.exit_code, said.err) == (Exit.BAD_INPUT, f"error: {says}\n")


def test_check_describes_the_run_even_if_this_machine_cannot_run_it(
    headway: Headway, folder: Path
) -> None:
    (folder / "run.yaml").write_text(RUN + "resources: {accelerators: H100:999}\n")
    said = headway("check")
    assert said.exit_code == Exit.BAD_INPUT
    assert "llama, 6.74B parameters" in said.out
    assert "H100:999 requested, but this machine has" in said.err


def test_a_run_for_a_target_is_checked_for_it(headway: Headway, folder: Path) -> None:
    (folder / "run.yaml").write_text(RUN + "resources: {accelerators: H100:64}\n")
    (folder / "targets.yaml").write_text(TARGET.replace("64Gi", "6400Gi"))
    assert headway("check").err.endswith("hint: to check it for a target: headway check --on lab\n")
    assert (headway("check", "--on", "lab").exit_code, headway("check", "--on", "x").exit_code) == (
        Exit.DONE,
        Exit.NOT_FOUND,
    )


def test_a_preset_is_no_run_yet(headway: Headway) -> None:
    assert headway("check", "llama2-70b").exit_code == Exit.DONE
