"""Memory of a host: what all workers of a machine, or of a pod, need together.

On CPUs that is everything. Beside GPUs it is small until the first checkpoint: then the workers of
one copy of the model keep a copy of its state, to write it while training continues.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.memory_limits import byte_size
from headway.plan.figure import Basis, Figure, Verdict, verdict_of, weakest
from headway.plan.fleet import Fleet
from headway.plan.memory_need import CHECKPOINT_BYTES

GIB = 2**30
SAVE_BUFFER_BYTES = 2 * 2**26
"""Of pinned memory, through which a device's state is copied; each worker has its own."""
GPU_WORKER_BYTES = (0.4 * GIB, 1.0 * GIB, 2.5 * GIB)
"""Of a worker beside its data, low, middle and high: torch with CUDA, and at the upper end blocks
of a set for which the disk has no room. Assumed: no GPU of ours measured it."""
# Measured on 2026-11-18 (torch 2.15.0, pages of /proc that are not of files): one worker and three
# of `tiny`, two with tensors of 2.3 GiB each, before and after a save.
CPU_WORKER_BYTES = (0.05 * GIB, 0.1 * GIB, 0.3 * GIB)
"""Of a worker on the CPU beside its tensors, and beside what it shares with the process that it was
forked from."""
HEAP_SHARE = (0.0, 0.1, 0.3)
"""Of its tensors, that the C library holds and has not given back."""
LAUNCHER_BYTES = (0.3 * GIB, 0.5 * GIB, 0.8 * GIB)
"""Of a host's own processes: the launcher, and the one that has imported torch and forks
workers."""
OTHERS_SHARE = 0.1
"""Of a machine's memory that other programs may hold. A pod's is its own."""


@dataclass(frozen=True)
class HostMemory:
    need: Figure
    """Of all workers of a host, at the moment that needs most."""
    moment: str
    """When that is."""
    room: Figure | None
    """What the host has; None: not known."""

    @property
    def verdict(self) -> Verdict | None:
        return verdict_of([self.need], self.room)


def host_memory(
    fleet: Fleet,
    *,
    parameters: int,
    copy_nodes: int,
    part_bytes: int,
    tensors: Figure | None,
    offloaded_bytes: int = 0,
) -> HostMemory:
    """`copy_nodes`: nodes that one copy of the model is on. `part_bytes`: of the largest part of
    the model, which a worker makes at a time. `tensors`: of a worker at the peak of a step, if they
    are in the host's memory. `offloaded_bytes`: by a worker."""
    workers = fleet.workers_per_host
    state = CHECKPOINT_BYTES * parameters
    # Of a live run the workers of one copy write it together, and any node may be one of those.
    # Where all restart, all write, but that may be on no more nodes than one copy has.
    saved = -(-state * min(fleet.nodes_per_host, copy_nodes) // copy_nodes)
    processes = _processes(fleet, workers)
    copy = Figure.exact(saved, f"{byte_size(saved)} of the state, copied to be saved")
    if tensors is not None:
        held = tensors.times(workers, _times(workers, tensors.value, "tensors of a step"))
        heap = Figure(*_spread(held, HEAP_SHARE), "measured", "a tenth of that not given back")
        need = _sum([held, heap, processes, copy])
        return HostMemory(need, "once a checkpoint was written", room_of(fleet))
    buffers = workers * (SAVE_BUFFER_BYTES + offloaded_bytes)
    words = "buffers of copies" + (" and offloaded activations" if offloaded_bytes else "")
    saving = [copy, processes, _exact(buffers, words)]
    parts = _exact(2 * workers * part_bytes, "parts of the model, as they are made")
    building = [processes, parts]
    moments = {"while it is saved": _sum(saving), "while it is built": _sum(building)}
    moment = max(moments, key=lambda name: moments[name].high)
    return HostMemory(moments[moment], moment, room_of(fleet))


def room_of(fleet: Fleet) -> Figure | None:
    has = fleet.host_bytes
    if has is None:
        return None
    if fleet.is_one_host:
        words = "this machine's, of which other programs may hold a tenth"
        return Figure(has, has * (1 - OTHERS_SHARE), has, "given", words)
    return Figure.exact(has, "memory of a worker's pod, as the target says", "given")


def _processes(fleet: Fleet, workers: int) -> Figure:
    each = CPU_WORKER_BYTES if fleet.device is None else GPU_WORKER_BYTES
    low, middle, high = (
        workers * worker + launcher for worker, launcher in zip(each, LAUNCHER_BYTES, strict=True)
    )
    basis: Basis = "measured" if fleet.device is None else "assumed"
    return Figure(middle, low, high, basis, f"{byte_size(middle)} of processes with torch")


def _spread(of: Figure, shares: tuple[float, float, float]) -> tuple[float, float, float]:
    low, middle, high = shares
    return of.value * middle, of.low * low, of.high * high


def _exact(size: float, what: str) -> Figure:
    return Figure.exact(size, f"{byte_size(size)} of {what}")


def _times(workers: int, each: float, what: str) -> str:
    number = f"{workers} x " if workers > 1 else ""
    return f"{number}{byte_size(each)} of {what}"


def _sum(parts: list[Figure]) -> Figure:
    value, low, high = (
        sum(getattr(part, key) for part in parts) for key in ("value", "low", "high")
    )
    return Figure(value, low, high, weakest(parts), ", ".join(part.reason for part in parts))
