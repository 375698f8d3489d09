"""The devices that a proof uses, and how a run gets so many of them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from headway.errors import BadInput
from headway.spec.resolve import Hardware

WORKERS = (1, 2, 4)
CPU_TOLERANCE, GPU_TOLERANCE = 1e-5, 1e-3
CPU_STEPS, GPU_STEPS = 24, 200
"""Steps take milliseconds on a GPU: there must be time to kill a worker between them."""


@dataclass(frozen=True)
class Devices:
    num_devices: int
    is_cpu: bool

    @property
    def worker_counts(self) -> list[int]:
        return [count for count in WORKERS if count <= self.num_devices]

    @property
    def tolerance(self) -> float:
        return CPU_TOLERANCE if self.is_cpu else GPU_TOLERANCE

    @property
    def num_steps(self) -> int:
        return CPU_STEPS if self.is_cpu else GPU_STEPS

    def options(self, workers: int) -> list[str]:
        return [word for change in self.overrides(workers) for word in ("--set", change)]

    def overrides(self, workers: int) -> list[str]:
        return [f"resources.accelerators=cpu:{workers}"] if self.is_cpu else []

    def environment(self, workers: int) -> dict[str, str]:
        """The run takes all the GPUs that it sees."""
        if self.is_cpu:
            return {}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(number) for number in range(workers)]
        return {"CUDA_VISIBLE_DEVICES": ",".join(names[:workers])}


def devices_for(machine: Hardware, wanted: int | None) -> Devices:
    """All GPUs of this machine or, without any, as many processes as the checks need."""
    present = machine.cuda_devices
    if present and wanted is not None and wanted > present:
        has = "1 GPU" if present == 1 else f"{present} GPUs"
        raise BadInput(
            f"--devices {wanted}, but this machine has {has}",
            "to rehearse it on the CPU: CUDA_VISIBLE_DEVICES= headway prove",
        )
    return Devices(wanted or present or max(WORKERS), is_cpu=present == 0)
