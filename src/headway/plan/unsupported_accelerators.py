"""Accelerators that Headway cannot use, by the names people and Kubernetes have for them.

Headway's code is for CUDA and for the CPU. A name from here is refused before anything starts; any
other unknown name is taken for an NVIDIA GPU that is not in the table of `accelerators`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    name: str
    """Plural, for messages."""
    kinds: str
    """Pattern of its names in `resources.accelerators`, in lower case, at their beginning."""
    resource: str | None = None
    """Beginning of its resource names in Kubernetes."""
    device_file: str | None = None
    """Its first device file, if no other hardware has one of that name."""
    torch_build: str | None = None
    """Beginning of the local version of torch built for it: `2.15.0+rocm6.4`."""


# fmt: off
FAMILIES = (
    Family("AWS Trainium and Inferentia", r"(aws-)?(trainium|trn\d|inferentia|inf\d|neuron)",
           "aws.amazon.com/neuron", "dev/neuron0"),
    Family("AMD GPUs (ROCm)", r"amd|rocm|instinct|radeon|mi\d\d", "amd.com/", None, "rocm"),
    Family("Google TPUs", r"(google-)?tpu|v[2-9](e|p|litepod)?-\d", "google.com/tpu", "dev/accel0"),
    Family("Intel Gaudi", r"(intel-)?gaudi|habana|hpu", "habana.ai/", "dev/hl0"),
    Family("Intel GPUs (XPU)", r"intel|xpu|pvc|arc\b|max-?1\d\d\d", "gpu.intel.com/", None, "xpu"),
    Family("Huawei Ascend", r"(huawei-)?ascend|npu", "huawei.com/"),
    Family("Apple GPUs (MPS)", r"apple|metal|mps"),
)
# fmt: on


def family_of_kind(kind: str) -> Family | None:
    """The family that a name in `resources.accelerators` belongs to."""
    folded = kind.casefold().replace("_", "-")
    return next((family for family in FAMILIES if re.match(family.kinds, folded)), None)


def family_of_resource(resource: str) -> Family | None:
    """The family that a resource name of Kubernetes belongs to."""
    return next(
        (one for one in FAMILIES if one.resource and resource.startswith(one.resource)), None
    )


def family_of_torch(version: str) -> Family | None:
    """The family that this version of torch was built for."""
    build = version.partition("+")[2]
    return next(
        (one for one in FAMILIES if one.torch_build and build.startswith(one.torch_build)), None
    )
