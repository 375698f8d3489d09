"""How a run is computed on its devices, by what fits; and what to change when nothing does, or
where another way costs less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headway.plan.accelerators import DEVICES, Device, find_device
from headway.plan.fleet import Fleet
from headway.plan.search import (
    Freedom,
    Way,
    fastest,
    fits,
    fits_devices,
    flags_between,
    freedom_of,
    step_seconds,
    whole_freedom,
)
from headway.plan.workload import Layout, Workload
from headway.spec.resolve import ALL_BLOCKS, LARGE_MODEL_PARAMETERS, AutoLayout, Hardware
from headway.spec.run_file import RunFile

MOST_NODES = 64
"""More nodes than that are not suggested."""
LEAST_GAIN = 0.03
"""Share of a step that a suggestion has to save."""


@dataclass(frozen=True)
class Change:
    """A change that makes a run fit, or cheaper."""

    words: str
    """What it does."""
    flags: str
    """For the command line."""
    is_new_run: bool
    """Whether it changes what is computed, so that a run cannot continue with it."""
    fleet: Fleet
    way: Way
    time_factor: float | None
    """Time of a step over that of the run as it is; None: not known."""


def chosen_way(run: RunFile, workload: Workload, fleet: Fleet) -> Way:
    """Return the way that the run file says. What it leaves to Headway is, on a known device, the
    fastest that fits, else what needs least memory; elsewhere it depends on the model's size alone,
    so that it is the same on all machines."""
    freedom = freedom_of(run, workload, fleet)
    smallest = _smallest(workload, freedom)
    if fleet.device is None:
        is_large = workload.model.size.parameters >= LARGE_MODEL_PARAMETERS
        blocks = freedom.blocks if freedom.blocks is not None else 0
        largest = Layout(freedom.shards[0], blocks, freedom.offloads[0])
        return Way(workload, smallest.layout if is_large else largest, None)
    return (
        fastest(workload, fleet, freedom)
        # No layout makes up for a host that is too small: then the devices decide.
        or fastest(workload, fleet, freedom, fits_devices)
        or replace(smallest, seconds=step_seconds(smallest.workload, fleet, smallest.layout))
    )


def _smallest(workload: Workload, freedom: Freedom) -> Way:
    blocks = ALL_BLOCKS if freedom.blocks is None else freedom.blocks
    layout = Layout(max(freedom.shards), blocks, freedom.offloads[-1])
    micro = workload.micro if len(freedom.micros) == 1 else min(freedom.micros)
    return Way(replace(workload, micro=micro), layout, None)


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
    # A run that may get one device or another has to fit both, with one size of micro-batch.
    micro = min(chosen_way(run, workload, fleet).workload.micro for fleet in fleets)
    sized = replace(workload, micro=micro, is_micro_open=False)
    layouts = [chosen_way(run, sized, fleet).layout for fleet in fleets]
    most = max(layouts, key=lambda layout: layout.recomputed_blocks)
    return AutoLayout(
        shards=any(layout.shard_devices > 1 for layout in layouts),
        checkpoint_activations=most.checkpoint_activations,
        shard_nodes=max(copy_nodes(layout, ranks) for layout in layouts),
        micro=micro,
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
    run: RunFile, workload: Workload, fleet: Fleet, now: Way
) -> tuple[Change, ...]:
    """Return the nearest changes that make it fit, one of each kind, those that keep the run
    first. `workload`: as the run file has it."""
    whole = whole_freedom(workload, fleet)
    way = fastest(workload, fleet, replace(whole, micros=[now.workload.micro]))
    way = way or fastest(workload, fleet, whole)
    found = (
        _change(run, fleet, now, fleet, way) if way is not None else None,
        _fewer_nodes(run, fleet, now),
        _more_nodes(run, workload, fleet, now),
        _other_device(run, workload, fleet, now),
    )
    return tuple(change for change in found if change is not None)


def cheaper_changes(run: RunFile, workload: Workload, fleet: Fleet, now: Way) -> Iterator[Change]:
    """Yield what makes a run that fits cheaper on the same devices, the largest gain first: the
    fastest way, the fastest that is compiled, and a wider copy if that saves yet more."""
    found: list[Change] = []
    least = now.seconds or 0.0
    for compiles, is_narrow in ((workload.compiles, True), (True, True), (True, False)):
        asked = replace(workload, compiles=compiles)
        freedom = replace(whole_freedom(asked, fleet), is_narrow=is_narrow)
        way = fastest(asked, fleet, freedom)
        if way is not None and way.seconds is not None and way.seconds <= (1 - LEAST_GAIN) * least:
            found.append(_change(run, fleet, now, fleet, way))
            least = way.seconds
    yield from reversed(found)


def _change(run: RunFile, fleet: Fleet, now: Way, there: Fleet, way: Way, more: str = "") -> Change:
    """Return the change to another way, on the same devices or on others (`more`: options for
    these)."""
    flags = flags_between(run, now, way, there)
    return Change(
        words=_words_between(fleet, now, there, way),
        flags=" ".join(filter(None, (more, flags))),
        is_new_run=not now.workload.is_micro_open and now.workload.micro != way.workload.micro,
        fleet=there,
        way=way,
        time_factor=way.seconds / now.seconds if way.seconds and now.seconds else None,
    )


def _words_between(fleet: Fleet, now: Way, there: Fleet, way: Way) -> str:
    old, new, words = now.layout, way.layout, []
    if there.device is not fleet.device and there.device is not None:
        words.append(f"uses {there.device.name}")
    if there.nodes < fleet.nodes:
        words.append("has fewer workers on this machine")
    if (micro := way.workload.micro) != now.workload.micro:
        words.append(f"computes {micro} sequence{'s' if micro > 1 else ''} at once")
    if old.shard_devices != new.shard_devices or there.nodes > fleet.nodes:
        nodes = copy_nodes(new, there.devices_per_node)
        over = f"{nodes} nodes" if nodes > 1 else f"the {new.shard_devices} devices of a node"
        is_whole = new.shard_devices == 1
        words.append("keeps the model whole" if is_whole else f"shards the model over {over}")
    if new.offloads and not old.offloads:
        words.append("moves the inputs of blocks to the host")
    elif new.recomputed_blocks != old.recomputed_blocks:
        words.append(_recomputing(new, way.workload.model.size.num_layers))
    if way.workload.compiles and not now.workload.compiles:
        words.append("compiles blocks")
    return " and ".join(words)


def _recomputing(layout: Layout, num_layers: int) -> str:
    if layout.recomputed_blocks >= num_layers:
        return "recomputes activations"
    if not layout.recomputed_blocks:
        return "recomputes nothing"
    return f"recomputes {layout.recomputed_blocks} of {num_layers} blocks"


def _more_nodes(run: RunFile, workload: Workload, fleet: Fleet, now: Way) -> Change | None:
    """With a copy of the model on more of them. A machine has no more nodes than devices."""
    if fleet.device is None or fleet.is_one_host:
        return None
    nodes = fleet.nodes * 2
    while nodes <= MOST_NODES:
        larger = replace(fleet, nodes=nodes)
        freedom = freedom_of(run, workload, larger)
        if (way := fastest(workload, larger, freedom)) is not None:
            return replace(_change(run, fleet, now, larger, way), flags=f"--nodes {nodes}")
        freedom = replace(freedom, shards=[larger.num_devices], blocks=None)
        if (way := fastest(workload, larger, freedom)) is not None:
            return _change(run, fleet, now, larger, way, f"--nodes {nodes}")
        nodes *= 2
    return None


def _fewer_nodes(run: RunFile, fleet: Fleet, now: Way) -> Change | None:
    """Of those that share one machine."""
    nodes = fleet.nodes // 2 if fleet.is_one_host else 0
    while nodes:
        smaller = replace(fleet, nodes=nodes)
        if now.layout.shard_devices <= fleet.devices_per_node:
            way = replace(now, seconds=step_seconds(now.workload, smaller, now.layout))
            if fits(way.workload, smaller, way.layout):
                return _change(run, fleet, now, smaller, way, f"--nodes {nodes}")
        nodes //= 2
    return None


def _other_device(run: RunFile, workload: Workload, fleet: Fleet, now: Way) -> Change | None:
    """The same number of them, with more memory: the smallest that fit."""
    if fleet.device is None:
        return None
    for device in sorted(DEVICES, key=lambda one: one.torch_gib):
        is_larger = device.torch_gib > fleet.device.torch_gib
        if not is_larger or (workload.precision == "bf16" and device.bf16_flops is None):
            continue
        other, elsewhere = replace(fleet, device=device), ""
        if fleet.is_one_host:
            other, elsewhere = replace(other, host_bytes=None), " of another machine or of a target"
        way = fastest(workload, other, freedom_of(run, workload, other))
        if way is None:
            continue
        flags = f"--set resources.accelerators={device.name}:{fleet.devices_per_node}"
        change = _change(run, fleet, now, other, way)
        return replace(change, words=f"uses {device.name}{elsewhere}", flags=flags)
    return None
