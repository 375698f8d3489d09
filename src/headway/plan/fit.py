"""How a run is laid out on its devices, by what fits; and what to change when nothing does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from headway.errors import BadInput
from headway.plan.accelerators import DEVICES, Device, find_device
from headway.plan.fleet import Fleet
from headway.plan.memory_peak import memory_of
from headway.plan.step_time import step_time
from headway.plan.workload import Layout, Workload
from headway.spec.resolve import (
    ALL_BLOCKS,
    LARGE_MODEL_PARAMETERS,
    AutoLayout,
    Hardware,
    recomputed_blocks,
)
from headway.spec.run_file import RunFile

MOST_NODES = 64
"""More nodes than that are not suggested."""


@dataclass(frozen=True)
class Change:
    """One that makes a run fit."""

    words: str
    """What it does."""
    flags: str
    """For the command line."""
    is_new_run: bool
    """Whether it changes what is computed, so that a run cannot continue with it."""
    workload: Workload
    fleet: Fleet
    layout: Layout
    time_factor: float | None
    """Time of a step over that of the run as it is; None: not known."""


def fits(workload: Workload, fleet: Fleet, layout: Layout) -> bool:
    return memory_of(workload, fleet, layout).verdict == "fits"


def chosen_layout(run: RunFile, workload: Workload, fleet: Fleet) -> Layout:
    """As the run file says. What it leaves to Headway is, on a known device, the fastest that
    fits, else what needs least memory; elsewhere it depends on the model's size alone, so that it
    is the same on all machines."""
    layouts = list(_allowed(run, fleet))
    if fleet.device is None:
        is_large = workload.model.size.parameters >= LARGE_MODEL_PARAMETERS
        return layouts[-1] if is_large else layouts[0]
    estimates = [memory_of(workload, fleet, one) for one in layouts]
    fitting = [one.verdict == "fits" for one in estimates]
    if not any(fitting):  # then the devices decide: no layout makes up for a host that is too small
        fitting = [one.device_verdict == "fits" for one in estimates]
    return layouts[fitting.index(True)] if any(fitting) else layouts[-1]


def _allowed(run: RunFile, fleet: Fleet) -> Iterator[Layout]:
    """Layouts that the run file leaves open, the fastest first and the smallest last. A copy of the
    model is on several nodes only if no other layout fits: they exchange each layer of it."""
    offloads = run.memory.offload != "none"
    written = run.memory.checkpoint_activations
    recomputed = [recomputed_blocks(written)] if written != "auto" else [ALL_BLOCKS]
    if written == "auto" and not offloads:
        recomputed.insert(0, 0)
    ranks, unit = fleet.devices_per_node, run.shard.unit
    if run.shard.is_wide:
        shards = [[ranks * (run.shard.num_nodes or fleet.nodes)]]
    elif unit == "auto":
        shards = [[1, ranks] if ranks > 1 else [1]]
        if fleet.device is not None:  # on CPUs nodes join and leave while it trains
            shards += [[ranks * nodes] for nodes in _node_groups(fleet)]
    else:
        shards = [[ranks if unit == "node" else 1]]
    for together in shards:
        for blocks in recomputed:
            for devices in together:
                yield Layout(devices, blocks, offloads)


def _node_groups(fleet: Fleet) -> list[int]:
    """Numbers of nodes, two or more, that a copy of the model can be on, so that all are used."""
    return [nodes for nodes in range(2, fleet.nodes + 1) if fleet.nodes % nodes == 0]


def auto_layout(
    run: RunFile,
    workload: Workload | None,
    machine: Hardware,
    nodes: int,
    *,
    is_one_host: bool = False,
) -> AutoLayout | None:
    """What `auto` means on the devices that the run asks for, or that the machine has. None: they
    are not known, or the model's shape is not, and its size decides. `is_one_host`: all nodes are
    processes of this machine."""
    devices = _devices(run, machine)
    if workload is None or not devices:
        return None
    wanted = run.resources.accelerators
    ranks = wanted.count if wanted is not None else machine.cuda_devices
    fleets = [Fleet(one, ranks, nodes, machine.memory_bytes, is_one_host) for one in devices]
    layouts = [chosen_layout(run, workload, fleet) for fleet in fleets]
    # A run that may get one device or another has to fit both.
    return AutoLayout(
        shards=any(layout.shard_devices > 1 for layout in layouts),
        recomputes=any(layout.recomputed_blocks > 0 for layout in layouts),
        shard_nodes=max(copy_nodes(layout, ranks) for layout in layouts),
    )


def copy_nodes(layout: Layout, ranks: int) -> int:
    """Nodes that a copy of the model is on."""
    return -(-layout.shard_devices // ranks)


def _devices(run: RunFile, machine: Hardware) -> list[Device]:
    """Those that the run may get; none if any of them is unknown, or if it runs on the CPU."""
    wanted = run.resources.accelerators
    if wanted is not None and wanted.is_cpu:
        return []
    named = [one.kind for one in wanted.choices] if wanted is not None else []
    if machine.device_name is not None:
        named = [machine.device_name]  # what is there says more than a name for several boards
    found = [find_device(name) for name in named]
    known = [device for device in found if device is not None]
    return known if len(known) == len(found) else []


def changes_that_fit(
    run: RunFile, workload: Workload, fleet: Fleet, layout: Layout
) -> tuple[Change, ...]:
    """The nearest changes that make it fit, one of each kind, those that keep the run first."""
    found = [
        _first_fitting(_layouts(workload, fleet, layout)),
        _first_fitting(_micros(workload, fleet, layout)),
        _first_fitting(_fewer_nodes(workload, fleet, layout)),
        _first_fitting(_more_nodes(run, workload, fleet, layout)),
        _first_fitting(_other_devices(run, workload, fleet)),
    ]
    now = _step_seconds(workload, fleet, layout)
    changes = []
    for change in found:
        if change is not None:
            then = _step_seconds(change.workload, change.fleet, change.layout)
            changes.append(replace(change, time_factor=then / now if now and then else None))
    return tuple(changes)


def _step_seconds(workload: Workload, fleet: Fleet, layout: Layout) -> float | None:
    try:
        estimate = step_time(workload, fleet, layout)
    except BadInput:  # of that precision no peak is known
        return None
    return None if estimate is None else estimate.seconds.value


def _first_fitting(changes: Iterator[Change]) -> Change | None:
    return next(
        (one for one in changes if fits(one.workload, one.fleet, one.layout)),
        None,
    )


RECOMPUTE = ("recomputes activations", "--set memory.checkpoint_activations=true")
OFFLOAD = ("moves the inputs of blocks to the host", "--set memory.offload=activations")


def _layouts(workload: Workload, fleet: Fleet, layout: Layout) -> Iterator[Change]:
    """The same devices, used otherwise; the fastest first."""
    for smaller, words, flags in smaller_layouts(fleet, layout):
        yield Change(words, flags, False, workload, fleet, smaller, None)


def smaller_layouts(fleet: Fleet, layout: Layout) -> Iterator[tuple[Layout, str, str]]:
    """Each with its words and flags."""
    recomputed: list[tuple[int, bool, list[tuple[str, str]]]]
    recomputed = [(layout.recomputed_blocks, layout.offloads, [])]
    if layout.recomputed_blocks < ALL_BLOCKS:
        recomputed.append((ALL_BLOCKS, False, [RECOMPUTE]))
    if fleet.device is not None and not layout.offloads:
        recomputed.append((ALL_BLOCKS, True, [OFFLOAD]))
    for blocks, offloads, saving in recomputed:
        for devices, sharding in _shardings(fleet, layout):
            parts: Sequence[tuple[str, str]] = [*sharding, *saving]
            if parts:
                words = " and ".join(part[0] for part in parts)
                flags = " ".join(part[1] for part in parts)
                yield Layout(devices, blocks, offloads), words, flags


def _shardings(fleet: Fleet, layout: Layout) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    yield layout.shard_devices, []
    ranks = fleet.devices_per_node
    if layout.shard_devices < ranks:
        yield ranks, [(f"shards the model over the {ranks} devices of a node", "--set shard=node")]
    for nodes in _node_groups(fleet):
        if layout.shard_devices < ranks * nodes:
            words, flags = f"over {nodes} nodes", f'--set "shard={nodes} nodes"'
            if nodes == fleet.nodes:
                words, flags = "over all nodes", "--set shard=all"
            yield ranks * nodes, [(f"shards the model {words}", flags)]


def _micros(workload: Workload, fleet: Fleet, layout: Layout) -> Iterator[Change]:
    """Fewer sequences at once, as many as possible; with recomputation if it has to be."""
    layouts = [(layout, "", "")]
    if layout.recomputed_blocks < ALL_BLOCKS:
        all_blocks = replace(layout, recomputed_blocks=ALL_BLOCKS)
        layouts.append((all_blocks, f" and {RECOMPUTE[0]}", RECOMPUTE[1]))
    for used, words, flags in layouts:
        micro = workload.micro // 2
        while micro:
            several = f"{micro} sequence{'s' if micro > 1 else ''}"
            smaller = replace(workload, micro=micro)
            flag = f"--set batch.micro={micro} {flags}".strip()
            yield Change(
                f"computes {several} at once{words}", flag, True, smaller, fleet, used, None
            )
            micro //= 2


def _more_nodes(run: RunFile, workload: Workload, fleet: Fleet, layout: Layout) -> Iterator[Change]:
    """With a copy of the model on more of them. A machine has no more nodes than devices."""
    if fleet.device is None or fleet.is_one_host:
        return
    nodes = fleet.nodes * 2
    while nodes <= MOST_NODES:
        larger = replace(fleet, nodes=nodes)
        if run.shard.unit == "auto":
            used = chosen_layout(run, workload, larger)
            words = f"shards the model over {copy_nodes(used, fleet.devices_per_node)} nodes"
            yield Change(words, f"--nodes {nodes}", False, workload, larger, used, None)
        for blocks in {layout.recomputed_blocks, ALL_BLOCKS}:
            words, flags = (
                f"shards the model over {nodes} nodes",
                f"--nodes {nodes} --set shard=all",
            )
            if blocks != layout.recomputed_blocks:
                words, flags = f"{words} and {RECOMPUTE[0]}", f"{flags} {RECOMPUTE[1]}"
            used = Layout(larger.num_devices, blocks, layout.offloads)
            yield Change(words, flags, False, workload, larger, used, None)
        nodes *= 2


def _fewer_nodes(workload: Workload, fleet: Fleet, layout: Layout) -> Iterator[Change]:
    """Of those that share one machine."""
    nodes = fleet.nodes // 2 if fleet.is_one_host else 0
    while nodes:
        smaller = replace(fleet, nodes=nodes)
        if layout.shard_devices <= fleet.devices_per_node:
            words = "has fewer workers on this machine"
            yield Change(words, f"--nodes {nodes}", False, workload, smaller, layout, None)
        nodes //= 2


def _other_devices(run: RunFile, workload: Workload, fleet: Fleet) -> Iterator[Change]:
    """The same number of them, with more memory: the smallest that fit."""
    if fleet.device is None:
        return
    for device in sorted(DEVICES, key=lambda one: one.torch_gib):
        is_larger = device.torch_gib > fleet.device.torch_gib
        if not is_larger or (workload.precision == "bf16" and device.bf16_flops is None):
            continue
        other, elsewhere = replace(fleet, device=device), ""
        if fleet.is_one_host:
            other, elsewhere = replace(other, host_bytes=None), " of another machine or of a target"
        used = chosen_layout(run, workload, other)
        flags = f"--set resources.accelerators={device.name}:{fleet.devices_per_node}"
        yield Change(f"uses {device.name}{elsewhere}", flags, False, workload, other, used, None)
