"""What this machine has, without importing torch."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headway.cores import num_cores
from headway.memory_limits import Memory
from headway.plan.unsupported_accelerators import FAMILIES
from headway.spec.resolve import Hardware

ROOT = Path("/")


def this_machine(root: Path = ROOT) -> Hardware:
    """`root` is the folder that holds dev, proc and sys."""
    num_devices = _cuda_devices(root)
    return Hardware(
        cores=num_cores(),
        cuda_devices=num_devices,
        device_name=cuda_name(root) if num_devices else None,
        memory_bytes=Memory(root).limit_bytes(),
        unsupported_devices=tuple(
            family.name
            for family in FAMILIES
            if family.device_file is not None and (root / family.device_file).exists()
        ),
        torch_version=torch_version(),
    )


def _cuda_devices(root: Path) -> int:
    """Devices that CUDA_VISIBLE_DEVICES leaves, of those the driver shows."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = [p for p in (root / "dev").glob("nvidia*") if re.match(r"^nvidia\d+$", p.name)]
    if visible is None:
        return len(present)
    named = [name for name in visible.split(",") if name.strip() and name.strip() != "-1"]
    return min(len(named), len(present))


def cuda_name(root: Path) -> str | None:
    """The name that the driver gives to all devices of this machine; None if they differ."""
    names = set()
    for file in (root / "proc/driver/nvidia/gpus").glob("*/information"):
        with suppress(OSError):
            names.add(file.read_text().partition("Model:")[2].partition("\n")[0].strip())
    return names.pop() if len(names) == 1 else None


def torch_version() -> str | None:
    """Of the installed package: its local part names the hardware it was built for."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None
