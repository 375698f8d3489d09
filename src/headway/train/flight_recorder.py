"""What torch's flight recorder knows of a worker's collectives, for the note of a hang."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

from headway.train.worker_log import log_line

LOG_CHARACTERS = 20_000


def collective_numbers() -> dict[str, list[int]] | None:
    """By process group, the numbers of the newest collective that this worker has enqueued and of
    the newest that has completed. Who has enqueued fewer than others holds them up. None: nothing
    was recorded. The collectives that have not completed go to this worker's log."""
    try:
        recorded: dict[str, Any] = json.loads(_dump())
        log_line(
            f"collectives that have not completed: {recorded.get('entries', [])}"[:LOG_CHARACTERS]
        )
        return {
            group: [int(status[f"last_{of}_collective"]) for of in ("enqueued", "completed")]
            for group, status in recorded["pg_status"].items()
        } or None
    except Exception as error:  # noqa: BLE001 - a hang is noted whatever becomes of private parts
        log_line(f"the flight recorder cannot be read: {error!r}")
        return None


def _dump() -> bytes:
    # Private in torch 2.15, where "nccl" is nccl2 unless TORCH_DIST_USE_NCCL2=0 chose the older
    # one, which has its own recorder.
    group = dist.group.WORLD
    backend = "gloo"
    if group is not None:
        first = min(group._device_types, key=lambda one: one.type == "cpu")  # an accelerator's
        backend = group._get_backend(first).name()
    bindings: Any = torch._C._distributed_c10d
    if backend == "nccl":
        older: bytes = bindings._dump_nccl_trace_json(onlyActive=True)
        return older
    found: bytes = bindings._dump_fr_trace_json(onlyActive=True, backend=backend)
    return found
