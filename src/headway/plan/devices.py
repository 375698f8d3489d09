"""Accelerators we know: peak speed and memory, from their makers' published data sheets.

Nothing in this file has run on a GPU here: the figures are copied from data sheets, and the names
that drivers report are taken from public logs. An unknown name gives None, never a guess, because
a wrong peak makes a wrong MFU that nobody notices.

Peaks are for dense matrices. Data sheets of Ampere and later like to print the figure for 2:4
sparse ones, which is twice as large and which training does not reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from headway.errors import BadInput
from headway.spec.units import Accelerators

Precision = Literal["bf16", "fp16", "fp32"]


@dataclass(frozen=True)
class Device:
    name: str
    """Our short name, as in `resources.accelerators`."""
    memory_gib: float
    """What the board offers, before driver and context take their part. HBM boards carry ECC on
    the side; GDDR6 ones give up a sixteenth for it, which is taken off here (T4: 15 of 16)."""
    bf16_flops: float | None
    """Peak dense FLOP/s; None where the hardware has no bf16 units."""
    fp16_flops: float
    """Peak dense FLOP/s with fp32 accumulation."""


_TERA = 1e12

# fmt: off
DEVICES: tuple[Device, ...] = (
    #      name             GiB    bf16            fp16             source
    Device("V100-16GB",      16.0, None,           125.0 * _TERA),  # V100 data sheet, SXM2
    Device("V100-32GB",      32.0, None,           125.0 * _TERA),  # V100 data sheet, SXM2
    Device("V100-PCIe-16GB", 16.0, None,           112.0 * _TERA),  # V100 data sheet, PCIe
    Device("V100-PCIe-32GB", 32.0, None,           112.0 * _TERA),  # V100 data sheet, PCIe
    Device("T4",             15.0, None,            65.0 * _TERA),  # T4 data sheet
    Device("A10G",           22.5,  70.0 * _TERA,   70.0 * _TERA),  # A10G data sheet (an A10: 125)
    Device("L4",             22.5, 121.0 * _TERA,  121.0 * _TERA),  # L4 data sheet, 242 sparse
    Device("L40S",           45.0, 362.0 * _TERA,  362.0 * _TERA),  # L40S data sheet, 733 sparse
    Device("A100-40GB",      40.0, 312.0 * _TERA,  312.0 * _TERA),  # A100 data sheet, 624 sparse
    Device("A100-80GB",      80.0, 312.0 * _TERA,  312.0 * _TERA),  # A100 data sheet, 624 sparse
    Device("H100",           80.0, 989.4 * _TERA,  989.4 * _TERA),  # H100 white paper, SXM5
    Device("H100-PCIe",      80.0, 756.0 * _TERA,  756.0 * _TERA),  # H100 white paper, PCIe
    Device("H200",          141.0, 989.4 * _TERA,  989.4 * _TERA),  # H200 data sheet, SXM: an H100
    Device("B200",          180.0, 2250.0 * _TERA, 2250.0 * _TERA), # HGX B200 data sheet, per GPU
)
# fmt: on

# What torch.cuda.get_device_name() prints, and other short names in use, after `_folded`. Whole
# names only: "H100 NVL", "GH200" and a MIG slice ("A100-SXM4-40GB MIG 1g.5gb") contain a known
# name and are other machines. A100 and V100 alone mean the smaller memory, as on cloud price lists:
# a plan that is wrong about it is then wrong on the safe side.
_ALSO: Mapping[str, str] = {
    "v100": "V100-16GB",
    "v100-sxm2-16gb": "V100-16GB",
    "v100-sxm2-32gb": "V100-32GB",
    "v100-sxm3-32gb": "V100-32GB",
    "v100-pcie-16gb": "V100-PCIe-16GB",
    "v100-pcie-32gb": "V100-PCIe-32GB",
    "a100": "A100-40GB",
    "a100-sxm4-40gb": "A100-40GB",
    "a100-pcie-40gb": "A100-40GB",
    "a100-sxm4-80gb": "A100-80GB",
    "a100-80gb-pcie": "A100-80GB",
    "a100-pcie-80gb": "A100-80GB",
    "h100-sxm": "H100",
    "h100-80gb": "H100",
    "h100-80gb-hbm3": "H100",
}


def _folded(name: str) -> str:
    """`NVIDIA A100 80GB PCIe` -> `a100-80gb-pcie`. Prefixes changed with driver versions."""
    words = name.casefold().replace("-", " ").replace("_", " ").split()
    while words and words[0] in ("nvidia", "tesla"):
        words = words[1:]
    return "-".join(words)


_BY_NAME: Mapping[str, Device] = {_folded(device.name): device for device in DEVICES}


def find_device(reported: str) -> Device | None:
    """The device that a driver or a run file means by this name; None if it is not in the table."""
    name = _folded(reported)
    return _BY_NAME.get(_folded(_ALSO[name]) if name in _ALSO else name)


def peak_flops(device: Device, precision: Precision) -> float | None:
    """Peak dense FLOP/s at this precision; None where the data sheets give none to compare with."""
    match precision:
        case "bf16":
            return device.bf16_flops
        case "fp16":
            return device.fp16_flops
        case "fp32":
            # Whether fp32 matmuls run as TF32 is a switch in torch and differs between devices: one
            # number would be wrong by a factor of eight for half of the users.
            return None


def mfu(
    flops_per_token: int,
    tokens_per_second: float,
    device: Device | None,
    num_devices: int,
    precision: Precision,
) -> float | None:
    """Model FLOPs utilisation, 0 to 1: the work the model needs over what the devices could do.

    None where there is no honest peak; `why_no_mfu` then says why.
    """
    assert num_devices >= 1
    peak = None if device is None else peak_flops(device, precision)
    if peak is None:
        return None
    return flops_per_token * tokens_per_second / (num_devices * peak)


def why_no_mfu(device_name: str, precision: Precision) -> str:
    """One sentence for the place where the MFU would stand. Only for a pair that has none."""
    if _folded(device_name) == "cpu":
        return "MFU is not given on CPUs: no published peak to compare with."
    device = find_device(device_name)
    if device is None:
        return f"MFU is not given: the peak of {device_name!r} is not in Headway's table."
    if precision == "fp32":
        return "MFU is not given in fp32: the peak depends on whether matmuls run as TF32."
    assert peak_flops(device, precision) is None, f"{device.name} has an MFU in {precision}"
    return f"MFU is not given: the {device.name} has no {precision} units (fp16 only)."


def require_device(asked: Accelerators | None, number: int, present: Sequence[str]) -> None:
    """A worker's own look, before it builds anything. `number`: of the device it would take;
    `present`: what torch calls the devices that it sees."""
    wanted = str(asked) if asked is not None else "GPU"
    if not present:
        raise BadInput(
            f"{wanted} requested, but torch sees no GPU",
            "--set resources.accelerators=cpu:1 runs it on the CPU",
        )
    gpus = f"{len(present)} GPU{'s' if len(present) > 1 else ''}: {', '.join(present)}"
    is_other = asked is not None and _is_another(asked.kind, present[0])
    if asked is not None and (is_other or asked.count > len(present)):
        here = find_device(present[0])
        kind = asked.kind if not is_other else here.name if here else "gpu"
        raise BadInput(
            f"{wanted} requested, but torch sees {gpus}",
            f"--set resources.accelerators={kind}:{min(asked.count, len(present))} runs it on the "
            f"{'GPUs there are' if len(present) > 1 else 'GPU there is'}",
        )
    if number >= len(present):
        raise BadInput(
            f"this is worker {number} of the machine, but torch sees {gpus}",
            "--nodes 1, or fewer accelerators a node",
        )


def _is_another(kind: str, reported: str) -> bool:
    """Whether a known device was asked for by name, and the driver reports one of another name.
    Boards of one name differ in memory and in how they are plugged in, and share its first word."""
    if find_device(kind) is None:
        return False
    return _folded(kind).split("-")[0] != _folded(reported).split("-")[0]
