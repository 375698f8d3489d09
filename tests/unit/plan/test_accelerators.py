from __future__ import annotations

import pytest

from headway.errors import BadInput
from headway.plan.accelerators import (
    DEVICES,
    find_device,
    mfu,
    peak_flops,
    require_device,
    why_no_mfu,
)
from headway.spec.quantities import Accelerators


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10G", "A10G"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe-16GB"),
        ("A100", "A100-40GB"),
        ("A100-80", "A100-80GB"),
        ("A100-40", "A100-40GB"),
        ("V100", "V100-16GB"),
        ("h100", "H100"),
    ],
)
def test_names_that_drivers_and_people_use(reported: str, name: str) -> None:
    device = find_device(reported)
    assert device is not None
    assert device.name == name


def test_every_row_is_found_by_its_own_name() -> None:
    assert [find_device(device.name) for device in DEVICES] == list(DEVICES)


@pytest.mark.parametrize(
    "reported",
    [
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA GH200 480GB",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA A10",
        "NVIDIA L40",
        "Tesla V100S-PCIE-32GB",
        "NVIDIA GeForce RTX 4090",
        "AMD Instinct MI300X",
        "cpu",
        "NVIDIA",
        "",
    ],
)
def test_other_machines_with_similar_names_are_unknown(reported: str) -> None:
    assert find_device(reported) is None


def test_peaks_are_the_dense_ones() -> None:
    # The sparse figures that data sheets print, in TFLOP/s: ours have to be about half.
    sparse = {"L4": 242, "L40S": 733, "A100-80GB": 624, "H100": 1979, "H200": 1979, "B200": 4500}
    for name, figure in sparse.items():
        device = find_device(name)
        assert device is not None
        assert device.fp16_flops == pytest.approx(figure / 2 * 1e12, rel=0.02)
        assert device.bf16_flops == device.fp16_flops
    assert [d.name for d in DEVICES if d.bf16_flops is None] == [
        *("V100-16GB", "V100-32GB", "V100-PCIe-16GB", "V100-PCIe-32GB", "T4")
    ]


def test_mfu_by_hand() -> None:
    a100 = find_device("A100-80GB")
    # 6 GFLOP a token at 26,000 tokens a second is 156 TFLOP/s: half of one A100, a quarter of two.
    assert mfu(6 * 10**9, 26_000, a100, 1, "bf16") == pytest.approx(0.5)
    assert mfu(6 * 10**9, 26_000, a100, 2, "fp16") == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("name", "precision", "reason"),
    [
        ("T4", "bf16", "no bf16 units"),
        ("Tesla V100-SXM2-16GB", "bf16", "no bf16 units"),
        ("NVIDIA H100 80GB HBM3", "fp32", "TF32"),
        ("NVIDIA H100 NVL", "bf16", "'NVIDIA H100 NVL' is not in Headway's table"),
        ("cpu", "fp32", "CPU"),
    ],
)
def test_no_mfu_comes_with_one_sentence(name: str, precision: str, reason: str) -> None:
    assert mfu(10**9, 1000.0, find_device(name), 1, precision) is None  # type: ignore[arg-type]
    sentence = why_no_mfu(name, precision)  # type: ignore[arg-type]
    assert reason in sentence
    assert sentence.endswith(".")
    assert sentence.count(". ") == 0


def test_no_excuse_where_there_is_a_figure() -> None:
    device = find_device("H100")
    assert device is not None
    assert peak_flops(device, "bf16") == 989.4e12
    with pytest.raises(AssertionError):
        why_no_mfu("H100", "bf16")


A100 = "NVIDIA A100-SXM4-80GB"
CPU = "to run it on the CPU: --set resources.accelerators=cpu:1"


@pytest.mark.trap(3, 6)
@pytest.mark.parametrize(
    ("asked", "number", "present", "says", "hint"),
    [
        ("A100:2", 0, [], "A100:2 requested, but torch sees no GPU", CPU),
        (None, 0, [], "GPU requested, but torch sees no GPU", CPU),
        (
            "A100:2",
            1,
            [A100],
            f"A100:2 requested, but torch sees 1 GPU: {A100}",
            "to run it on the GPU of this machine: --set resources.accelerators=A100:1",
        ),
        # Two nodes on one machine.
        (
            "A100:1",
            1,
            [A100],
            f"this is worker 1 of the machine, but torch sees 1 GPU: {A100}",
            "--nodes 1, or fewer accelerators a node",
        ),
        (
            "A100:2",
            1,
            ["Tesla T4", "Tesla T4"],
            "A100:2 requested, but torch sees 2 GPUs: Tesla T4, Tesla T4",
            "to run it on the GPUs of this machine: --set resources.accelerators=T4:2",
        ),
        (
            "[H100:1, A100:1]",
            0,
            ["Tesla T4"],
            "[H100:1, A100:1] requested, but torch sees 1 GPU: Tesla T4",
            "to run it on the GPU of this machine: --set resources.accelerators=T4:1",
        ),
    ],
)
def test_a_worker_refuses_a_machine_without_its_device(
    asked: str | None, number: int, present: list[str], says: str, hint: str
) -> None:
    accelerators = Accelerators.parse(asked) if asked else None
    with pytest.raises(BadInput) as caught:
        require_device(accelerators, number, present)
    assert (caught.value.message, caught.value.hint) == (says, hint)


@pytest.mark.parametrize(
    ("asked", "present"),
    [
        ("A100:1", "NVIDIA A100-SXM4-80GB"),
        ("A100-80GB:1", "NVIDIA A100 80GB PCIe"),
        ("H100:1", "NVIDIA H100 NVL"),
        ("[H100:1, A100-80:1]", "NVIDIA A100-SXM4-80GB"),
        ("A100:1", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
        # Names that are not in the table: nobody knows what their drivers call them.
        ("gpu:1", "NVIDIA GeForce RTX 4090"),
    ],
)
def test_a_device_by_any_of_its_names_is_taken(asked: str, present: str) -> None:
    require_device(Accelerators.parse(asked), 0, [present])
    require_device(None, 0, [present])
