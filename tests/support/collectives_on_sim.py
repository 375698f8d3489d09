"""Collectives of a group of one on the simulated device: enqueued, waited for, and failing."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from support.simulated_device import install
from support.simulated_streams import BROKEN, DEVICE, Fault, SimulatedEvent, SimulatedStream


def enqueue_and_fail(answers: Any) -> None:
    with install():
        dist.init_process_group("sim:simccl", store=HashStore(), rank=0, world_size=1)
        found: dict[str, Any] = {"sound": _sums()}
        for kind in ("fails", "hangs", "breaks"):
            DEVICE.default, DEVICE.fault = SimulatedStream(), None
            found[kind] = _after_fault(torch.ones(3).to("sim"), _next(kind))
        DEVICE._is_broken = False
        for name in ("none", "hangs", "never"):
            DEVICE.default, DEVICE.fault = SimulatedStream(), None
            found[f"waits: {name}"] = _waits(None if name == "none" else _next(name))
        found["log"] = [(one.op, one.ranks, one.num_bytes) for one in DEVICE.launches[:1]]
        answers.put(found)


def _next(kind: Any) -> Fault:
    return Fault(kind, rank=0, launch=len(DEVICE.launches) + 1)


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


def _after_fault(tensor: torch.Tensor, fault: Fault) -> str:
    """What the host finds, which looks at an event after the collective and the operator behind."""
    DEVICE.fault = fault
    try:
        tensor += 1
        dist.all_reduce(tensor)
        tensor += 1
        event = SimulatedEvent()
        event.record()
        return "reached" if event.query() else "not reached"
    except RuntimeError as error:
        return "broken" if BROKEN in str(error) else type(error).__name__


def _waits(fault: Fault | None) -> list[float] | bool:
    """The sums that the host reads, or whether it finds meanwhile that its device waits in a
    collective, which is not its own fault."""
    from headway.train.collectives import WaitTimer, WorkerGroup

    timer, sums = WaitTimer(), list[float]()
    assert dist.group.WORLD is not None
    device = torch.device("sim", 0)
    group = WorkerGroup(dist.group.WORLD, timer)
    gradients, vector = torch.ones(100).to(device), torch.ones(2).double().to(device)
    DEVICE.fault = fault
    gradients += 1
    pending = group.start_all_reduce(gradients)
    pending.wait()
    read = group.start_sums(vector)
    threading.Thread(target=lambda: sums.extend(read()), daemon=True).start()
    deadline = time.monotonic() + 3.0
    while not sums and not timer.seconds and time.monotonic() < deadline:
        time.sleep(0.01)
    return sums or timer.seconds > 0
