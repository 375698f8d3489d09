"""Collectives of a group of one on the simulated device: enqueued, waited for, and failing."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from support.simulated_device import install
from support.simulated_streams import BROKEN, DEVICE, Fault, SimulatedEvent, SimulatedStream


def enqueue_and_fail(answers: Any) -> None:
    with install():
        dist.init_process_group("sim:simccl", store=HashStore(), rank=0, world_size=1)
        found = {"sound": _sums()}
        for kind in ("fails", "hangs", "breaks"):
            DEVICE.default = SimulatedStream()
            DEVICE.fault = Fault(kind, rank=0, launch=len(DEVICE.launches) + 1)
            found[kind] = _after_fault()
        found["log"] = [(one.op, one.ranks, one.num_bytes) for one in DEVICE.launches[:1]]
        answers.put(found)


def _sums() -> list[Any]:
    """Before and after the stream that computes waits for the collective: the result, and whether
    an event recorded there was reached."""
    tensor = torch.ones(3).to("sim")
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    early = (tensor + 1).tolist()
    other = SimulatedStream()
    with DEVICE.on(other):
        work.wait()
    side = (tensor + 1).tolist()
    DEVICE.default.wait_stream(other)
    return [all(map(math.isnan, early)), all(map(math.isnan, side)), (tensor + 1).tolist()]


def _after_fault() -> str:
    """What the host finds, which looks at an event after the collective and the operator behind."""
    tensor = torch.ones(3).to("sim")
    try:
        dist.all_reduce(tensor)
        tensor += 1
        event = SimulatedEvent()
        event.record()
        return "reached" if event.query() else "not reached"
    except RuntimeError as error:
        return "broken" if BROKEN in str(error) else type(error).__name__
