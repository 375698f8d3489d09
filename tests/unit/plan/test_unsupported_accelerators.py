from __future__ import annotations

import pytest

from headway.plan.accelerators import DEVICES
from headway.plan.unsupported_accelerators import (
    family_of_kind,
    family_of_resource,
    family_of_torch,
)


@pytest.mark.parametrize(
    ("kinds", "family"),
    [
        ("Trainium trainium2 trn1 trn2 Inferentia2 inf2 neuron", "AWS Trainium and Inferentia"),
        ("MI300X mi250x MI210 AMD-MI300X Instinct-MI355X rocm Radeon-7900", "AMD GPUs (ROCm)"),
        ("TPU tpu-v5e tpu_v6e v4-8 v5litepod-16 v5p-8 google-tpu", "Google TPUs"),
        ("Gaudi gaudi3 intel-gaudi2 HPU habana", "Intel Gaudi"),
        ("xpu Intel-Max-1550 PVC Max-1100 arc-a770", "Intel GPUs (XPU)"),
        ("Ascend910B npu huawei-ascend", "Huawei Ascend"),
        ("mps apple-m3 metal", "Apple GPUs (MPS)"),
    ],
)
def test_names_of_accelerators_without_code(kinds: str, family: str) -> None:
    for kind in kinds.split():
        found = family_of_kind(kind)
        assert found is not None, kind
        assert found.name == family, kind


def test_names_of_nvidia_gpus_are_not_among_them() -> None:
    others = "gpu cuda V100 A100 A10 H100-NVL GH200 B300 RTX4090 RTX-A6000 P100 K80 M60 nvidia-h100"
    for kind in [*(device.name for device in DEVICES), *others.split()]:
        assert family_of_kind(kind) is None, kind


@pytest.mark.parametrize(
    ("resource", "family"),
    [
        ("aws.amazon.com/neuron", "AWS Trainium and Inferentia"),
        ("aws.amazon.com/neuroncore", "AWS Trainium and Inferentia"),
        ("amd.com/gpu", "AMD GPUs (ROCm)"),
        ("google.com/tpu", "Google TPUs"),
        ("habana.ai/gaudi", "Intel Gaudi"),
        ("gpu.intel.com/i915", "Intel GPUs (XPU)"),
        ("huawei.com/Ascend910", "Huawei Ascend"),
        ("nvidia.com/gpu", None),
        ("nvidia.com/mig-3g.40gb", None),
    ],
)
def test_resources_of_kubernetes(resource: str, family: str | None) -> None:
    found = family_of_resource(resource)
    assert (found.name if found else None) == family


@pytest.mark.parametrize(
    ("version", "family"),
    [
        ("2.15.0+rocm6.4", "AMD GPUs (ROCm)"),
        ("2.15.0+xpu", "Intel GPUs (XPU)"),
        ("2.15.0+cu130", None),
        ("2.15.0+cpu", None),
        ("2.15.0", None),
    ],
)
def test_builds_of_torch(version: str, family: str | None) -> None:
    found = family_of_torch(version)
    assert (found.name if found else None) == family
