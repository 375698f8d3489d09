"""An accelerator that is not in Headway's table, as the user describes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from headway.errors import BadInput
from headway.plan.accelerators import DEVICES, Device, find_device, folded_name
from headway.plan.unsupported_accelerators import family_of_kind

KEYS = ("like", "memory", "bf16", "fp16")
EXAMPLE = "like=H100,memory=94GB,bf16=835T"


def device_of(kind: str, description: str | None) -> Device:
    """As described, else of the table. Raises if it is neither, or if Headway cannot use it."""
    if (family := family_of_kind(kind)) is not None:
        raise BadInput(
            f"{kind}: Headway does not run on {family.name}",
            f"devices that it knows: {known_devices()}",
        )
    if description is not None:
        return _described(kind, description)
    if (device := find_device(kind)) is not None:
        return device
    raise BadInput(
        f"{kind} is not in Headway's table of accelerators, and nothing about it is guessed",
        f"to describe it by its data sheet, dense peaks: --device {EXAMPLE}; in the table: "
        f"{known_devices()}",
    )


def known_devices() -> str:
    return ", ".join(device.name for device in DEVICES)


def _described(kind: str, description: str) -> Device:
    given: dict[str, str] = {}
    for part in description.split(","):
        key, equals, value = part.partition("=")
        if not equals or key.strip() not in KEYS or not value.strip():
            raise BadInput(
                f"--device {description}: {part!r} is not one of "
                + ", ".join(f"{key}=VALUE" for key in KEYS),
                f"for example --device {EXAMPLE}",
            )
        given[key.strip()] = value.strip()
    base = find_device(given["like"]) if "like" in given else find_device(kind)
    if base is None:
        raise BadInput(
            f"--device {description}: "
            + (f"{given['like']} is not in the table" if "like" in given else "like= is missing"),
            f"the known device that {kind} resembles most, for its links: {known_devices()}",
        )
    device = replace(base, name=kind if find_device(kind) is None else base.name)
    if "memory" in given:
        gib = _number(description, given["memory"], _MEMORY) / 2**30
        seen = gib * base.torch_gib / base.memory_gib
        device = replace(device, memory_gib=gib, torch_gib=seen)
    if "bf16" in given:
        device = replace(device, bf16_flops=_number(description, given["bf16"], _PEAKS))
    if "fp16" in given or "bf16" in given:
        peak = given.get("fp16") or given["bf16"]
        device = replace(device, fp16_flops=_number(description, peak, _PEAKS))
    return device


_MEMORY = {"GB": 2**30, "GiB": 2**30, "G": 2**30, "Gi": 2**30, "": 2**30}
# Boards are named by gibibytes and labelled GB: an H100 of "80 GB" has 80 GiB.
_PEAKS = {"": 1e12, "T": 1e12, "TFLOPS": 1e12, "P": 1e15, "PFLOPS": 1e15}


def _number(description: str, text: str, units: Mapping[str, float]) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text)
    if match is None or match[2] not in units or float(match[1]) <= 0:
        words = " or ".join(unit for unit in units if unit)
        raise BadInput(
            f"--device {description}: {text!r} is not a number with one of the units {words}",
            f"for example --device {EXAMPLE}",
        )
    return float(match[1]) * units[match[2]]


def near_shape(name: str) -> str | None:
    """The shape that somebody means who gives the name of a device as a target."""
    device = find_device(name)
    return None if device is None or folded_name(name) == "" else f"{name}:8"
