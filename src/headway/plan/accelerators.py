"""Known accelerators: peak speed and memory, from the vendors' published data sheets.

Nothing in this file has run on a GPU here: the figures are copied from data sheets, and the names
that drivers report are taken from public logs. An unknown name gives None, never a guess, because a
wrong peak gives a wrong MFU that nobody notices.

Peaks are for dense matrices. Data sheets from Ampere on tend to print the figure for 2:4 sparsity,
which is twice as large and out of reach for training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headway.errors import BadInput
from headway.spec.quantities import Accelerators

Precision = Literal["bf16", "fp16", "fp32"]
ON_CPU = "to run it on the CPU: --set resources.accelerators=cpu:1"


@dataclass(frozen=True)
class Device:
    name: str
    """Short name, as in `resources.accelerators`."""
    memory_gib: float
    """Memory of the board, before the driver and the context take their share. HBM boards store ECC
    separately; GDDR6 boards lose a sixteenth to it, which is subtracted here (T4: 15 of 16)."""
    bf16_flops: float | None
    """Peak dense FLOP/s; None where the hardware has no bf16 units."""
    fp16_flops: float
    """Peak dense FLOP/s with fp32 accumulation."""
    torch_gib: float
    """Memory that torch calls the device's total, least of the readings found: what a plan has to
    stay below."""
    memory_bytes_per_second: float
    """Peak bandwidth of the board's memory."""
    link_bytes_per_second: float
    """Between the devices of a machine, one direction, sum over the links of a device."""
    chip: str
    """The GPU itself: how much of a peak is reached is a matter of it."""


_TERA, _GIGA = 1e12, 1e9


def _device(
    name: str,
    memory_gib: float,
    bf16: float | None,
    fp16: float,
    torch_gib: float,
    memory: float,
    link: float,
    chip: str,
) -> Device:
    """Peaks in TFLOP/s, memory and link in GB/s."""
    bf16_flops = None if bf16 is None else bf16 * _TERA
    speeds = (torch_gib, memory * _GIGA, link * _GIGA)
    return Device(name, memory_gib, bf16_flops, fp16 * _TERA, *speeds, chip)


# What torch sees of an A10G, L4, H100-PCIe and H200 was not found: it is the least share that any
# board with such memory has (GDDR6: T4, 0.971; HBM: A100-40GB, 0.985). A name that stands for
# boards of two forms (A100) has the links of SXM. Where each figure is from:
# bench/published/devices.toml, which a test compares.
# fmt: off
DEVICES: tuple[Device, ...] = (
    #       name                GiB   bf16    fp16   torch  GB/s link  chip
    _device("V100-16GB",       16.0,   None,  125.0,  15.75,  900, 150, "GV100"),  # SXM2
    _device("V100-32GB",       32.0,   None,  125.0,  31.74,  900, 150, "GV100"),  # SXM2
    _device("V100-PCIe-16GB",  16.0,   None,  112.0,  15.75,  897,  16, "GV100"),  # PCIe
    _device("V100-PCIe-32GB",  32.0,   None,  112.0,  31.74,  897,  16, "GV100"),  # PCIe
    _device("T4",              15.0,   None,   65.0,  14.56,  320,  16, "TU104"),
    _device("A10G",            22.5,   70.0,   70.0,  21.83,  600,  31, "GA102"),  # an A10: 125
    _device("L4",              22.5,  121.0,  121.0,  21.83,  300,  31, "AD104"),  # 242 sparse
    _device("L40S",            45.0,  362.0,  362.0,  44.42,  864,  31, "AD102"),  # 733 sparse
    _device("A100-40GB",       40.0,  312.0,  312.0,  39.39, 1555, 300, "GA100"),  # 624 sparse
    _device("A100-80GB",       80.0,  312.0,  312.0,  79.14, 2039, 300, "GA100"),  # 624 sparse
    _device("H100",            80.0,  989.4,  989.4,  79.11, 3350, 450, "GH100"),  # SXM5
    _device("H100-PCIe",       80.0,  756.0,  756.0,  78.78, 2000,  63, "GH100"),  # PCIe
    _device("H200",           141.0,  989.4,  989.4, 138.80, 4800, 450, "GH100"),  # SXM: an H100
    _device("B200",           180.0, 2250.0, 2250.0, 178.35, 8000, 900, "GB100"),  # of an HGX
)

# Headway has no code for these: `find_device` does not find them.
WITHOUT_PATH: tuple[Device, ...] = (
    _device("MI300X",         192.0, 1307.4, 1307.4, 189.07, 5300, 448, "CDNA3"),  # OAM
)
# fmt: on

# What torch.cuda.get_device_name() prints, and other short names in use, after `folded_name`. Whole
# names only: "H100 NVL", "GH200" and a MIG slice ("A100-SXM4-40GB MIG 1g.5gb") contain a known name
# but are different devices. A100 and V100 alone mean the smaller memory, as on cloud price lists:
# if that is wrong, the plan errs on the safe side.
_ALSO: Mapping[str, str] = {
    "v100": "V100-16GB",
    "v100-sxm2-16gb": "V100-16GB",
    "v100-sxm2-32gb": "V100-32GB",
    "v100-sxm3-32gb": "V100-32GB",
    "v100-pcie-16gb": "V100-PCIe-16GB",
    "v100-pcie-32gb": "V100-PCIe-32GB",
    "a100": "A100-40GB",
    "a100-40": "A100-40GB",
    "a100-sxm4-40gb": "A100-40GB",
    "a100-pcie-40gb": "A100-40GB",
    "a100-80": "A100-80GB",
    "a100-sxm4-80gb": "A100-80GB",
    "a100-80gb-pcie": "A100-80GB",
    "a100-pcie-80gb": "A100-80GB",
    "h100-sxm": "H100",
    "h100-80gb": "H100",
    "h100-80gb-hbm3": "H100",
}


def folded_name(name: str) -> str:
    """`NVIDIA A100 80GB PCIe` -> `a100-80gb-pcie`. Prefixes changed with driver versions."""
    words = name.casefold().replace("-", " ").replace("_", " ").split()
    while words and words[0] in ("nvidia", "tesla"):
        words = words[1:]
    return "-".join(words)


_BY_NAME: Mapping[str, Device] = {folded_name(device.name): device for device in DEVICES}


def find_device(reported: str) -> Device | None:
    """The device that a driver or a run file means by this name; None if it is not in the table."""
    name = folded_name(reported)
    return _BY_NAME.get(folded_name(_ALSO[name]) if name in _ALSO else name)


# Boards that share a short name differ in memory, and ECC, which the table subtracts, can be off.
_LARGEST_GIB: Mapping[str, float] = {
    "v100": 32.0,
    "t4": 16.0,
    "a10g": 24.0,
    "l4": 24.0,
    "l40s": 48.0,
    "a100": 80.0,
    "h100": 96.0,
    "b200": 192.0,
}


def most_memory_gib(reported: str) -> float | None:
    """Memory that no device of this name exceeds, for refusals that must be certain; None if it is
    not in the table."""
    device = find_device(reported)
    return None if device is None else _LARGEST_GIB.get(folded_name(reported), device.memory_gib)


def peak_flops(device: Device, precision: Precision) -> float | None:
    """Peak dense FLOP/s at this precision; None if the data sheets give no comparable figure."""
    match precision:
        case "bf16":
            return device.bf16_flops
        case "fp16":
            return device.fp16_flops
        case "fp32":
            # Whether fp32 matmuls run as TF32 is a setting in torch and differs between devices: a
            # single number would be wrong by a factor of eight for half of the users.
            return None


def mfu(
    flops_per_token: int,
    tokens_per_second: float,
    device: Device | None,
    num_devices: int,
    precision: Precision,
) -> float | None:
    """Model FLOPs utilisation, 0 to 1: the work the model needs over what the devices could do.

    None if there is no honest peak; `why_no_mfu` then says why.
    """
    assert num_devices >= 1
    peak = None if device is None else peak_flops(device, precision)
    if peak is None:
        return None
    return flops_per_token * tokens_per_second / (num_devices * peak)


def why_no_mfu(device_name: str, precision: Precision) -> str:
    """One sentence to show instead of the MFU. Only for a combination that has none."""
    if folded_name(device_name) == "cpu":
        return "MFU is not given on CPUs: no published peak to compare with."
    device = find_device(device_name)
    if device is None:
        return f"MFU is not given: the peak of {device_name!r} is not in Headway's table."
    if precision == "fp32":
        return "MFU is not given in fp32: the peak depends on whether matmuls run as TF32."
    assert peak_flops(device, precision) is None, f"{device.name} has an MFU in {precision}"
    return f"MFU is not given: the {device.name} has no {precision} units (fp16 only)."


def require_device(asked: Accelerators | None, number: int, present: Sequence[str]) -> None:
    """Checks a worker's device before it builds anything. `number` is the index of the device it
    would use; `present` are the names that torch reports for the visible devices."""
    wanted = str(asked) if asked is not None else "GPU"
    if not present:
        raise BadInput(
            f"{wanted} requested, but torch sees no GPU",
            ON_CPU,
        )
    gpus = f"{len(present)} GPU{'s' if len(present) > 1 else ''}: {', '.join(present)}"
    is_other = asked is not None and all(_is_another(one.kind, present[0]) for one in asked.choices)
    if asked is not None and (is_other or asked.count > len(present)):
        here = find_device(present[0])
        kind = asked.kind if not is_other else here.name if here else "gpu"
        raise BadInput(
            f"{wanted} requested, but torch sees {gpus}",
            f"to run it on the {'GPUs' if len(present) > 1 else 'GPU'} of this machine: "
            f"--set resources.accelerators={kind}:{min(asked.count, len(present))}",
        )
    if number >= len(present):
        raise BadInput(
            f"this is worker {number} of the machine, but torch sees {gpus}",
            "--nodes 1, or fewer accelerators a node",
        )


def _is_another(kind: str, reported: str) -> bool:
    """Whether a known device was requested by name and the driver reports a different one. Boards
    of the same name vary in memory and form factor, and share its first word."""
    if find_device(kind) is None:
        return False
    return folded_name(kind).split("-")[0] != folded_name(reported).split("-")[0]
