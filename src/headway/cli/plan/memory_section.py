"""Memory of a device at the peak of a step, part by part, beside what it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.cli.plan.figure_text import PlanEntry, PlanSection, ranged, shown

if TYPE_CHECKING:
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


def memory_section(memory: MemoryEstimate, what: str) -> PlanSection:
    """`what`: device or worker."""
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
    entries.append(PlanEntry("host_bytes", "host, all workers", memory.host, "bytes", "", True))
    return PlanSection("memory", f"Memory of a {what}", tuple(entries), memory.moment)


def memory_words(memory: MemoryEstimate, what: str) -> str:
    peak = ranged(memory.peak, "bytes")
    if memory.room is None:
        return f"{peak} on each {what}; what it has is not known"
    return f"{peak} of {shown(memory.room.value, 'bytes')} on each {what}"


def _key(name: str) -> str:
    return name.replace("'s", "").replace(" ", "_")
