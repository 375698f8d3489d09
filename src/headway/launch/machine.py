"""What this machine has, without importing torch."""

from __future__ import annotations

import os
import re
from pathlib import Path

from headway.spec.resolve import Machine


def this_machine() -> Machine:
    return Machine(cores=len(os.sched_getaffinity(0)), cuda_devices=_cuda_devices())


def _cuda_devices() -> int:
    """Devices that CUDA_VISIBLE_DEVICES leaves, of those the driver shows."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = [p for p in Path("/dev").glob("nvidia*") if re.match(r"^nvidia\d+$", p.name)]
    if visible is None:
        return len(present)
    named = [name for name in visible.split(",") if name.strip() and name.strip() != "-1"]
    return min(len(named), len(present))
