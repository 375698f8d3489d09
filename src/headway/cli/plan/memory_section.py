"""Memory of a device at the peak of a step, part by part, beside what it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.cli.plan.figure_text import PlanEntry, PlanSection, ranged, shown

if TYPE_CHECKING:
    from headway.plan.figure import Figure
    from headway.plan.fleet import Fleet
    from headway.plan.memory_peak import MemoryEstimate

NAMES = {
    "gradients of a micro-batch": "fresh gradients",
    "gradients of activations": "backward pass",
    "optimizer's temporaries": "temporaries",
}
"""Where the name of a part is too long for its column."""
REMARKS = {
    "weights": "fp32",
    "optimizer": "both averages of Adam, fp32",
    "gradients": "fp32",
    "weight copies": "what is computed with",
    "gathered weights": "one or two layers at a time",
    "activations": "kept for the backward pass",
    "logits": "of a micro-batch",
    "allocator": "held and not usable",
    "outside of torch": "CUDA, NCCL",
    "gradients of a micro-batch": "not yet added to the others",
    "gradients of activations": "gradients inside one layer",
    "optimizer's temporaries": "of the optimizer",
    "reduced gradients": "being reduce-scattered",
}


def memory_section(memory: MemoryEstimate, fleet: Fleet) -> PlanSection:
    what = "device" if fleet.device is not None else "worker"
    entries = [
        PlanEntry(
            f"{_key(name)}_bytes", NAMES.get(name, name), figure, "bytes", REMARKS.get(name, "")
        )
        for name, figure in sorted(memory.parts.items(), key=lambda item: -item[1].value)
    ]
    entries += [
        PlanEntry("step_bytes", "in all", memory.step, "bytes"),
        PlanEntry("building_bytes", "while it is built", memory.building, "bytes", "", True),
        PlanEntry("saving_bytes", "while it is saved", memory.saving, "bytes", "", True),
        PlanEntry("memory_bytes", "at its peak", memory.peak, "bytes", "", True),
    ]
    if memory.room is not None:
        entries.append(PlanEntry("room_bytes", f"a {what} has", memory.room, "bytes"))
    host, workers = memory.host, fleet.workers_per_host
    several = f"{workers} workers" if workers > 1 else "1 worker"
    entries.append(PlanEntry("host_bytes", f"host, {several}", host.need, "bytes", host.moment))
    if host.room is not None:
        label = "this machine has" if fleet.is_one_host else "a pod has"
        entries.append(PlanEntry("host_room_bytes", label, host.room, "bytes"))
    return PlanSection("memory", f"Memory of a {what}", tuple(entries), memory.moment)


def memory_words(memory: MemoryEstimate, fleet: Fleet) -> str:
    """What is needed of what there is: of the devices, and of the hosts where that decides."""
    found = []
    if fleet.device is not None:
        peak = ranged(memory.peak, "bytes")
        found.append(f"{peak}{_of(memory.room)} on each device")
    if fleet.device is None or memory.host.verdict not in ("fits", None):
        need = f"{ranged(memory.host.need, 'bytes')}{_of(memory.host.room)}"
        found.append(f"{need} {_where(fleet)}")
    if memory.device_verdict == "fits":  # what decides comes first
        found.reverse()
    return "; ".join(found)


def _where(fleet: Fleet) -> str:
    if fleet.host_bytes is None:
        return "on each host; what it has is not known"
    return "on this machine" if fleet.is_one_host else "in each pod"


def _of(room: Figure | None) -> str:
    return "" if room is None else f" of {shown(room.value, 'bytes')}"


def _key(name: str) -> str:
    return name.replace("'s", "").replace(" ", "_")
