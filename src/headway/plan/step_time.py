"""How long a step takes on given devices, and of what that is made."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headway.errors import BadInput
from headway.plan.accelerators import Device, find_device, mfu, peak_flops, why_no_mfu
from headway.plan.batch_division import num_micro_batches, share_of
from headway.plan.efficiency import (
    ASSUMED_NETWORK_GBIT,
    NETWORK_RANGE,
    fitted,
    is_unseen,
    spread_of,
)
from headway.plan.figure import Basis, Figure
from headway.plan.fleet import Fleet
from headway.plan.step_work import JoinedDevices, Method, Passes, StepParts, step_parts
from headway.plan.workload import Layout, Workload

GBIT = 1e9 / 8
LAMB_TOUCHES = 24
"""Headway's LAMB works tensor by tensor, with temporaries for each."""
LEAST_MEASURED_SPREAD = 0.05
"""Steps of one minute resemble each other more than those of a month do."""


@dataclass(frozen=True)
class StepTime:
    seconds: Figure
    parts: Mapping[str, Figure]
    """What the seconds are made of, largest first; `hidden communication` and `idle devices` are
    beside the sum. Empty if the step was measured."""
    tokens_per_second: Figure
    mfu: Figure | None
    """None on devices or in precisions without a peak."""
    num_passes: int
    """Forward and backward passes of the device that makes most of them."""
    notes: tuple[str, ...] = ()
    """What the reader should know besides, a sentence each."""


def step_time(workload: Workload, fleet: Fleet, layout: Layout) -> StepTime | None:
    """None on CPUs, where only recorded steps say it. Raises BadInput for a precision of which no
    peak of the device is known."""
    device = fleet.device
    if device is None:
        return None
    _require_peak(device, workload)
    passes = passes_of(workload, fleet, layout)
    network = fleet.network_bytes_per_second or _assumed_network(fleet, device)
    place = JoinedDevices(device, fleet.devices_per_node, fleet.nodes, network)
    method = headway_method(workload, fleet, layout)

    def parts_with(place: JoinedDevices) -> StepParts:
        efficiencies = fitted().efficiencies
        return step_parts(workload.model, workload.teacher, passes, place, method, efficiencies)

    parts = parts_with(place)
    fastest = slowest = parts
    is_assumed = fleet.nodes > 1 and fleet.network_bytes_per_second is None
    if is_assumed:
        slow, fast = (replace(place, network_bytes_per_second=network * f) for f in NETWORK_RANGE)
        slowest, fastest = parts_with(slow), parts_with(fast)
    low, high = spread_of(device)
    seconds = Figure(
        *(parts.seconds, fastest.seconds * low, slowest.seconds * high),
        basis="assumed" if is_assumed or is_unseen(device) else "fitted",
        reason=f"{passes.number} {'passes' if passes.number > 1 else 'pass'} of {passes.micro} x "
        f"{passes.sequence_length} tokens on each device; {fitted().num_predicted} published runs "
        f"were predicted with a median error of {fitted().median_error:.0%}",
    )
    return _step_time(
        *(workload, fleet, seconds, passes.number),
        parts={
            **_part_figures(parts, workload, place, passes, method, is_assumed),
            **_idle(workload, fleet, passes.number),
        },
        notes=tuple(_notes(workload, fleet, is_assumed=is_assumed)),
    )


def measured_step_time(
    workload: Workload, fleet: Fleet, layout: Layout, seconds: Sequence[float], recorded_by: str
) -> StepTime:
    """`seconds`: of steps that were run, several, after those that warm up. `recorded_by`: the
    run, for the reason."""
    # Without the fastest and slowest tenth: something else on the machine had a part in those.
    cut = len(seconds) // 10
    kept = sorted(seconds)[cut : len(seconds) - cut]
    mean = statistics.mean(kept)
    error = statistics.stdev(kept) / math.sqrt(len(kept)) / mean
    figure = Figure.within(
        mean,
        min(0.9, max(LEAST_MEASURED_SPREAD, 2 * error)),
        "measured",
        f"mean of {len(seconds)} steps, {min(seconds):.3g} to {max(seconds):.3g} s, recorded by "
        f"{recorded_by}",
    )
    number = passes_of(workload, fleet, layout).number
    return _step_time(
        *(workload, fleet, figure, number),
        parts=_idle(workload, fleet, number),
        notes=tuple(_notes(workload, fleet, is_measured=True)),
    )


def headway_method(workload: Workload, fleet: Fleet, layout: Layout) -> Method:
    """What Headway does: fp32 weights and optimizer state, gradients added up and sent in fp32,
    weights sent in the precision of the products (FSDP2)."""
    is_sharded = layout.shard_devices > 1
    return Method(
        sharding="zero3" if is_sharded else "ddp" if fleet.num_devices > 1 else "none",
        shard_devices=layout.shard_devices,
        recomputed=min(1.0, layout.recomputed_blocks / workload.model.size.num_layers),
        is_fused=workload.compiles,
        optimizer_touches=LAMB_TOUCHES
        if workload.optimizer == "lamb"
        else Method.optimizer_touches,
        offloads=layout.offloads,
    )


def _step_time(
    workload: Workload,
    fleet: Fleet,
    seconds: Figure,
    num_passes: int,
    parts: Mapping[str, Figure],
    notes: tuple[str, ...],
) -> StepTime:
    tokens = workload.tokens_per_step
    rate = Figure(
        tokens / seconds.value,
        tokens / seconds.high,
        tokens / seconds.low,
        seconds.basis,
        f"{tokens:,} tokens a step",
    )
    figure: Figure | None = None
    at = (fleet.device, fleet.num_devices, workload.precision)
    values = [mfu(workload.flops_per_token, one, *at) for one in (rate.value, rate.low, rate.high)]
    if (value := values[0]) is not None and fleet.device is not None:
        peak = peak_flops(fleet.device, workload.precision) or 0.0
        reason = (
            f"{workload.flops_per_token / 1e9:.3g} GFLOP a token, over {fleet.num_devices} x "
            f"{peak / 1e12:.4g} TFLOP/s; what is recomputed is not in it"
        )
        figure = Figure(value, values[1] or 0.0, values[2] or 0.0, seconds.basis, reason)
    return StepTime(seconds, parts, rate, figure, num_passes, notes)


def _require_peak(device: Device, workload: Workload) -> None:
    if peak_flops(device, workload.precision) is not None:
        return
    other = "bf16" if device.bf16_flops is not None else "fp16"
    because = why_no_mfu(device.name, workload.precision).partition(": ")[2]
    raise BadInput(
        f"the time of a step in {workload.precision} on {device.name} cannot be estimated: "
        + because.rstrip("."),
        f"--set precision={other}, or plan a run that has trained on one: headway plan RUN",
    )


def passes_of(workload: Workload, fleet: Fleet, layout: Layout) -> Passes:
    """Of the device that makes most of them."""
    if fleet.num_devices % layout.shard_devices:
        raise BadInput(
            f"{fleet.num_devices} devices do not form whole groups of {layout.shard_devices}, over "
            "which the model is sharded",
            "give a number of devices that is a multiple of it, or another shard",
        )
    micro_batches = num_micro_batches(workload.global_batch, workload.micro)
    # The first rank has the largest share.
    share = share_of(micro_batches, fleet.num_devices, layout.shard_devices, rank=0)
    return Passes(share.num_passes, workload.micro, workload.sequence_length, workload.precision)


def _assumed_network(fleet: Fleet, device: Device) -> float:
    return ASSUMED_NETWORK_GBIT[device.chip] * fleet.devices_per_node * GBIT


def _idle(workload: Workload, fleet: Fleet, num_passes: int) -> dict[str, Figure]:
    """Share of the devices' passes that compute nothing of the batch."""
    micro_batches = num_micro_batches(workload.global_batch, workload.micro)
    share = 1 - micro_batches / (num_passes * fleet.num_devices)
    if share <= 0:
        return {}
    reason = (
        f"{micro_batches} micro-batches of {workload.micro} sequences over {fleet.num_devices} "
        f"devices: as many as {num_passes} each would be {num_passes * fleet.num_devices}"
    )
    return {"idle devices": Figure.exact(share, reason)}


def _notes(
    workload: Workload, fleet: Fleet, *, is_assumed: bool = False, is_measured: bool = False
) -> list[str]:
    notes = []
    micro_batches = num_micro_batches(workload.global_batch, workload.micro)
    if micro_batches < fleet.num_devices:
        notes.append(
            f"{fleet.num_devices - micro_batches} of {fleet.num_devices} devices have nothing to "
            f"compute: the global batch of {workload.global_batch} sequences is {micro_batches} "
            f"micro-batch{'es' if micro_batches > 1 else ''} of {workload.micro}."
        )
    if (device := fleet.device) is not None and not is_measured and is_unseen(device):
        share = fitted().efficiencies.matmul[device.chip]
        kin = sorted(
            name
            for name in fitted().devices
            if (found := find_device(name)) is not None
            and fitted().efficiencies.matmul[found.chip] == share
        )
        notes.append(
            f"No run on {device.name} was published with its setting: the efficiency of "
            f"{' and '.join(kin)} is taken, and the range is wider."
        )
    if is_assumed and fleet.device is not None:
        gbit = _assumed_network(fleet, fleet.device) / GBIT
        notes.append(
            f"What joins the nodes is not known: {gbit:g} Gbit/s a node are assumed, and a quarter "
            "to twice that in the range."
        )
    return notes


def _part_figures(
    parts: StepParts,
    workload: Workload,
    place: JoinedDevices,
    passes: Passes,
    method: Method,
    is_assumed: bool,
) -> dict[str, Figure]:
    """Those that take time, largest first."""
    device, size, found = place.device, workload.model.size, fitted().efficiencies
    peak = peak_flops(device, workload.precision) or 0.0
    share = found.matmul[device.chip]
    touches = found.fused_touches if method.is_fused else found.touches
    rate = f"{share:.0%} of {peak / 1e12:.4g} TFLOP/s"
    memory = f"{device.memory_bytes_per_second / 1e12:.3g} TB/s"
    network = place.network_bytes_per_second / GBIT
    links = f"{device.link_bytes_per_second / 1e9:.4g} GB/s between devices"
    if place.nodes > 1:
        links += f", {network:.4g} Gbit/s between nodes"
    blocks = "the blocks" if method.recomputed == 1 else f"{method.recomputed:.0%} of the blocks"
    ways = {
        "none": "none: one device",
        "ddp": "all-reduce of the gradients, in fp32, once a step",
        "zero3": f"weights twice and gradients once in each pass, over {method.shard_devices} "
        "devices",
    }
    reasons = {
        "products": f"6 operations x {size.matmul_parameters / 1e9:.3g}B weights x "
        f"{passes.tokens:,} tokens at {rate}",
        "attention": f"fused kernels at {found.attention:.0%} of that",
        "elementwise": f"activations read or written {touches:.0f} times at {memory}"
        + (", compiled" if method.is_fused else ""),
        "recomputation": f"the forward pass of {blocks} a second time",
        "teacher": "its forward pass",
        "offloading": "inputs of the blocks to the host and back",
        "launching": "the device waits for the host's next kernel: the model is small",
        "optimizer": f"{method.optimizer_touches} reads or writes of the state at {memory}",
        "communication": f"{ways.get(method.sharding, '')}; {links}; what is not hidden",
        "hidden communication": f"behind computing: {1 - found.exposed:.0%} of what can be",
    }
    values = {
        "products": parts.products,
        "attention": parts.attention,
        "elementwise": parts.elementwise,
        "recomputation": parts.recomputation,
        "teacher": parts.teacher,
        "offloading": parts.offloading,
        "launching": parts.launching,
        "optimizer": parts.optimizer,
        "communication": parts.visible,
    }
    low, high = spread_of(device)
    basis: dict[str, Basis] = dict.fromkeys(("launching", "offloading"), "assumed")
    if is_assumed:
        basis |= dict.fromkeys(("communication", "hidden communication"), "assumed")

    def figure(name: str, value: float) -> Figure:
        at = basis.get(name, "fitted")
        return Figure(value, value * low, value * high, at, reasons[name])

    ordered = sorted(values.items(), key=lambda item: -item[1])
    figures = {name: figure(name, value) for name, value in ordered if value > 0}
    if parts.hidden > 0:
        figures["hidden communication"] = figure("hidden communication", parts.hidden)
    return figures
