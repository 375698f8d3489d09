"""Memory that a device needs: in a step, while the model is built, while it is saved.

A step is a few moments at which memory can be highest; at each of them what is alive is counted
part by part. On CPUs the counts are compared with torch's own (`make bench-memory`); what GPUs need
beside them is fitted to published runs or assumed, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.memory_limits import byte_size
from headway.plan.figure import WORST_LAST, Basis, Figure, Verdict, verdict_of, weakest
from headway.plan.fleet import Fleet
from headway.plan.host_memory import HostMemory, host_memory
from headway.plan.memory_need import CHECKPOINT_BYTES
from headway.plan.step_moments import (
    MICRO_GRADIENTS,
    Bytes,
    StepShape,
    divided,
    gradient_parts,
    highest_moment,
    largest_part,
    offloaded_bytes,
    state_parts,
    step_shape,
)
from headway.plan.workload import Layout, Workload

COUNT_SHARE = 0.03
"""Uncertainty of a count on CPUs: the worst of `make bench-memory` was off by less."""


@dataclass(frozen=True)
class Overhead:
    """A share of the bytes that are counted."""

    low: float
    middle: float
    high: float

    def of(self, size: float, basis: Basis, reason: str) -> Figure:
        return Figure(size * self.middle, size * self.low, size * self.high, basis, reason)


SMALL = Overhead(0.0, 0.005, 0.02)
"""On CPUs: token ids, angles of positions, sums of norms."""
# Fitted to published runs, by the rows that may be fitted to (tests/support/published_memory.py):
# the median and the largest of allocated over counted bytes, and reserved beyond that.
GPU_SMALL = Overhead(0.0, 0.09, 0.15)
"""The same on GPUs, whose kernels have work space besides."""
GPU_ALLOCATOR = Overhead(0.0, 0.07, 0.10)
"""Memory that torch's allocator holds and cannot use."""
OUTSIDE_BYTES = (2**29, 2**30, 3 * 2**29)
"""CUDA's context, cuBLAS' and NCCL's buffers, low, middle and high: assumed, since nobody prints
them. The device has them, torch does not count them."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of one device of a run, and of its node's host."""

    parts: Mapping[str, Figure]
    """What is alive when a step needs most; they add up to `step`."""
    moment: str
    """When that is."""
    step: Figure
    building: Figure
    saving: Figure
    """While the weights are made, and once the state was copied to be saved."""
    host: HostMemory
    """Of all workers of a machine or pod; on the CPU, all that they need."""
    room: Figure | None
    """What a device has; None on the CPU, where the host's memory is shared."""

    @property
    def peak(self) -> Figure:
        return max((self.step, self.building, self.saving), key=lambda figure: figure.value)

    @property
    def device_verdict(self) -> Verdict | None:
        return verdict_of([self.step, self.building, self.saving], self.room)

    @property
    def verdict(self) -> Verdict | None:
        """The worse of device and host; None: nothing is known to compare with."""
        known = [one for one in (self.device_verdict, self.host.verdict) if one is not None]
        return max(known, key=WORST_LAST.index, default=None)


def memory_of(workload: Workload, fleet: Fleet, layout: Layout) -> MemoryEstimate:
    """For the device that needs most: the first one."""
    shape = step_shape(workload, fleet, layout)
    moment, counted = highest_moment(shape)
    parts = _with_overhead(counted, shape, fleet, is_exact=not workload.compiles)
    step = _sum(parts, f"{moment}: the sum of {len(parts)} parts")
    state = sum(state_parts(shape).values())
    building = state + 4 * largest_part(shape)
    built = _scaled(_whole(building, "state, and one part of the model as it is made"), shape)
    if shape.on_gpu:
        held = _whole(state + sum(gradient_parts(shape).values()), "state and gradients")
        saved = _scaled(held, shape)
    else:
        copy = divided(CHECKPOINT_BYTES * shape.parameters, shape.shards)
        saved = _sum(
            {"step": step, "copy": Figure.exact(copy, "")},
            "a step, while a copy of the state is kept to be saved",
        )
    host = host_memory(
        fleet,
        parameters=shape.parameters,
        copy_nodes=-(-shape.shards // fleet.devices_per_node),
        part_bytes=4 * largest_part(shape),
        tensors=None if shape.on_gpu else step,
        offloaded_bytes=offloaded_bytes(shape),
    )
    return MemoryEstimate(parts, moment, step, built, saved, host, _room(fleet))


def _with_overhead(
    counted: Bytes, shape: StepShape, fleet: Fleet, *, is_exact: bool
) -> dict[str, Figure]:
    parts = {name: _part(name, size, shape, is_exact) for name, size in counted.items()}
    total = sum(counted.values())
    if not shape.on_gpu:
        parts["small tensors"] = SMALL.of(total, "assumed", "token ids, angles, sums of norms")
        return parts
    parts["small tensors"] = GPU_SMALL.of(
        total, "fitted", f"{GPU_SMALL.middle:.0%} of {byte_size(total)}: work space of kernels"
    )
    parts["allocator"] = GPU_ALLOCATOR.of(
        total,
        "fitted",
        f"{GPU_ALLOCATOR.middle:.0%} of {byte_size(total)} that torch's allocator holds and cannot "
        "use",
    )
    low, middle, high = (size if fleet.num_devices > 1 else size / 2 for size in OUTSIDE_BYTES)
    parts["outside of torch"] = Figure(
        middle, low, high, "assumed", "CUDA's context, buffers of cuBLAS and NCCL"
    )
    return parts


_EXACT = frozenset({"weights", "gradients", "optimizer", "teacher", "weight copies"})
_REASONS: Mapping[str, str] = {
    "weights": "{weights} bytes a parameter{shards}",
    "gradients": "{gradients} bytes a parameter that has its gradient{shards}",
    "optimizer": "{optimizer} bytes a parameter: two averages{shards}",
    "weight copies": "{number} bytes a parameter: what is computed with",
    "gathered weights": "layers and ends that are whole on this device for a time",
    "reduced gradients": "a layer's gradients while they are reduce-scattered",
    "activations": "{tokens} tokens x {kept}, and the ends",
    "logits": "{rows} x {vocabulary} entries, with their gradients",
    "teacher": "4 bytes a parameter{shards}",
    MICRO_GRADIENTS: "before they are added to those in fp32",
    "gradients of activations": "inside one layer",
    "optimizer's temporaries": "five tensors of the largest one's size",
}


def _part(name: str, size: int, shape: StepShape, is_exact: bool) -> Figure:
    reason = _REASONS[name].format(
        weights=shape.state.weights,
        gradients=shape.state.gradients,
        optimizer=shape.state.optimizer,
        number=shape.number,
        shards=f", over {shape.shards} devices" if shape.is_sharded else "",
        tokens=shape.tokens,
        kept=_kept_words(shape),
        rows=f"{shape.loss_rows} rows at a time" if shape.loss_rows else f"{shape.tokens} tokens",
        vocabulary=shape.model.vocabulary,
    )
    if name in _EXACT:
        return Figure.exact(size, reason)
    if not is_exact and name in ("activations", "logits"):
        # A compiler keeps less, and how much it does not say.
        return Figure(size, size * 0.6, size * (1 + COUNT_SHARE), "assumed", reason)
    return Figure.within(size, COUNT_SHARE, "counted", reason)


def _kept_words(shape: StepShape) -> str:
    kept, again = shape.kept, shape.recomputed
    whole = shape.model.layers - again
    words = [f"{whole} layers x {kept.layer} bytes"] if whole else []
    words += [f"{again} recomputed layers x {kept.block_input} bytes"] if again else []
    return f"({' + '.join(words)})" if len(words) > 1 else words[0]


def _sum(parts: Mapping[str, Figure], reason: str) -> Figure:
    value, low, high = (
        sum(getattr(figure, key) for figure in parts.values()) for key in ("value", "low", "high")
    )
    large = [figure for figure in parts.values() if figure.value > 0.01 * value]
    return Figure(value, low, high, weakest(large), reason)


def _whole(size: int, reason: str) -> Figure:
    return Figure.within(size, COUNT_SHARE, "counted", reason)


def _scaled(figure: Figure, shape: StepShape) -> Figure:
    """With what a GPU needs beside it; large tensors alone leave the allocator no gaps."""
    if not shape.on_gpu:
        return figure
    low, middle, high = OUTSIDE_BYTES
    return Figure(
        figure.value + middle, figure.low + low, figure.high + high, "assumed", figure.reason
    )


def _room(fleet: Fleet) -> Figure | None:
    if fleet.device is None:
        return None
    name, seen = fleet.device.name, fleet.device.torch_gib
    return Figure.exact(seen * 2**30, f"what torch sees of the {name}: {seen:g} GiB", "published")
