"""The fastest way to compute a run on given devices, by the estimates of memory and time.

Searched are the sequences that a device computes at once, the blocks that it recomputes, the
devices that hold one copy of the model, and whether inputs of blocks wait in the host's memory. The
global batch stays as it is, so every way computes the same sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from headway.errors import BadInput
from headway.plan.fleet import Fleet
from headway.plan.memory_peak import memory_of
from headway.plan.step_time import step_time
from headway.plan.workload import Layout, Workload
from headway.spec.resolve import ALL_BLOCKS, AUTO_MICRO_TOKENS, recomputed_blocks
from headway.spec.run_file import RunFile

MOST_MICRO_TOKENS = 2**16
"""Most tokens of a micro-batch that the search tries: a device has long been busy."""
MOST_EQUAL_PASSES = 16
"""Beyond that many passes a size that does not divide the share leaves little idle."""
NEAR = 0.02
"""Share of a step that estimates cannot tell apart: within it the plainest way is taken."""
SHARDING_GAIN = 0.06
"""Share of a step that a wider copy has to save: the plain way until a run on GPUs has shown what
sharding costs and saves."""

Fits = Callable[[Workload, Fleet, Layout], bool]


@dataclass(frozen=True)
class Freedom:
    """Choices that the search has."""

    micros: Sequence[int]
    """Sequences per micro-batch."""
    shards: Sequence[int]
    """Devices that hold one copy of the model."""
    blocks: int | None
    """Recomputed blocks; None: any number."""
    offloads: Sequence[bool]
    is_narrow: bool = True
    """Whether a copy is on several nodes only if no node holds one: the number of nodes has to be a
    multiple of a copy's then, whatever is lost or added."""


@dataclass(frozen=True)
class Way:
    """A way to compute a run on a fleet."""

    workload: Workload
    layout: Layout
    seconds: float | None
    """Time of a step; None where nothing is known of it."""


def fits(workload: Workload, fleet: Fleet, layout: Layout) -> bool:
    return memory_of(workload, fleet, layout).verdict == "fits"


def fits_devices(workload: Workload, fleet: Fleet, layout: Layout) -> bool:
    return memory_of(workload, fleet, layout).device_verdict == "fits"


def freedom_of(run: RunFile, workload: Workload, fleet: Fleet) -> Freedom:
    """Return what the run file leaves to Headway."""
    written = run.memory.checkpoint_activations
    ranks, unit = fleet.devices_per_node, run.shard.unit
    if run.shard.is_wide:
        shards = [ranks * (run.shard.num_nodes or fleet.nodes)]
    elif unit == "auto":
        shards = all_shards(fleet)
    else:
        shards = [ranks if unit == "node" else 1]
    return Freedom(
        micros=all_micros(workload, fleet) if workload.is_micro_open else [workload.micro],
        shards=shards,
        blocks=None if written == "auto" else recomputed_blocks(written),
        offloads=[run.memory.offload != "none"],
    )


def whole_freedom(workload: Workload, fleet: Fleet) -> Freedom:
    """Return all that a run file could say."""
    offloads = [False] if fleet.device is None or workload.compiles else [False, True]
    return Freedom(all_micros(workload, fleet), all_shards(fleet), None, offloads)


def all_shards(fleet: Fleet) -> list[int]:
    ranks = fleet.devices_per_node
    found = [1, ranks] if ranks > 1 else [1]
    if fleet.device is not None:  # on CPUs nodes join and leave while it trains
        found += [ranks * nodes for nodes in node_groups(fleet)]
    return found


def node_groups(fleet: Fleet) -> list[int]:
    """Numbers of nodes, two or more, that a copy of the model can be on, so that all are used."""
    return [nodes for nodes in range(2, fleet.nodes + 1) if fleet.nodes % nodes == 0]


def all_micros(workload: Workload, fleet: Fleet) -> list[int]:
    """Return sizes that divide a device's share into equal passes, and the powers of two."""
    share = -(-workload.global_batch // fleet.num_devices)
    most = max(1, min(share, MOST_MICRO_TOKENS // workload.sequence_length))
    powers = [1 << power for power in range(most.bit_length())]
    # As few passes as a power of two takes, but equal ones.
    passes = {*range(1, MOST_EQUAL_PASSES + 1), *(-(-share // size) for size in powers)}
    equal = {-(-share // number) for number in passes}
    return sorted(size for size in {*powers, *equal} if size <= most)


def fastest(workload: Workload, fleet: Fleet, freedom: Freedom, allows: Fits = fits) -> Way | None:
    """Return the fastest way that fits. Of those that are as fast within what estimates can tell,
    it is the plainest: fewest devices a copy, then fewest recomputed blocks, then a micro-batch of
    about AUTO_MICRO_TOKENS. None: no way fits."""
    found = list(_ways(workload, fleet, freedom, allows))
    if freedom.is_narrow:
        narrow = [way for way in found if way.layout.shard_devices <= fleet.devices_per_node]
        found = narrow or found
    least = _least_seconds(found)
    for shards in sorted({way.layout.shard_devices for way in found}):
        least_so = _least_seconds([way for way in found if way.layout.shard_devices == shards])
        if least is not None and least_so is not None and least_so * (1 - SHARDING_GAIN) <= least:
            found, least = [way for way in found if way.layout.shard_devices == shards], least_so
            break
    near = [way for way in found if least is None or (way.seconds or least) <= (1 + NEAR) * least]
    return min(near, key=_plainness, default=None)


def _least_seconds(ways: Sequence[Way]) -> float | None:
    return min((way.seconds for way in ways if way.seconds is not None), default=None)


def _plainness(way: Way) -> tuple[bool, int, int, float]:
    layout, tokens = way.layout, way.workload.micro * way.workload.sequence_length
    distance = abs(math.log2(tokens / AUTO_MICRO_TOKENS))
    return layout.offloads, layout.shard_devices, layout.recomputed_blocks, distance


def _ways(workload: Workload, fleet: Fleet, freedom: Freedom, allows: Fits) -> Iterator[Way]:
    """Yield the fastest way for each micro-batch, sharding and offload that fits."""
    for micro in freedom.micros:
        sized = replace(workload, micro=micro)
        for shards in freedom.shards:
            for offloads in freedom.offloads:
                whole = Layout(shards, ALL_BLOCKS, offloads)
                blocks = _fewest_blocks(sized, fleet, whole, freedom.blocks, allows)
                if blocks is not None:
                    layout = replace(whole, recomputed_blocks=blocks)
                    yield Way(sized, layout, step_seconds(sized, fleet, layout))


def _fewest_blocks(
    workload: Workload, fleet: Fleet, whole: Layout, written: int | None, allows: Fits
) -> int | None:
    """Return the fewest recomputed blocks that fit, or None: recomputing takes time, and each
    block that is recomputed keeps less."""

    def may(blocks: int) -> bool:
        return allows(workload, fleet, replace(whole, recomputed_blocks=blocks))

    if written is not None or whole.offloads:
        only = ALL_BLOCKS if written is None else written
        return only if may(only) else None
    if may(0):
        return 0
    # The last block is recomputed at once, so all but it may need less than all.
    layers = workload.model.size.num_layers
    too_few, enough = 0, layers if may(ALL_BLOCKS) else layers - 1
    if not may(enough):
        return None
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if may(middle):
            enough = middle
        else:
            too_few = middle
    return ALL_BLOCKS if enough == layers else enough


def step_seconds(workload: Workload, fleet: Fleet, layout: Layout) -> float | None:
    try:
        estimate = step_time(workload, fleet, layout)
    except BadInput:  # of that precision no peak is known
        return None
    return None if estimate is None else estimate.seconds.value


def flags_between(run: RunFile, before: Way, after: Way, fleet: Fleet) -> str:
    """Return the options that turn one way of a run into another, for the command line."""
    old, new, flags = before.layout, after.layout, []
    if before.workload.micro != after.workload.micro:
        flags.append(f"--set batch.micro={after.workload.micro}")
    if old.shard_devices != new.shard_devices:
        flags.append(shard_flag(new.shard_devices, fleet))
    if old.offloads != new.offloads:
        flags.append(f"--set memory.offload={'activations' if new.offloads else 'none'}")
    # What waits in the host's memory is recomputed: offload alone says so.
    is_said = new.offloads and run.memory.checkpoint_activations == "auto"
    if old.recomputed_blocks != new.recomputed_blocks and not is_said:
        value = str(new.checkpoint_activations).lower()
        flags.append(f"--set memory.checkpoint_activations={value}")
    if before.workload.compiles != after.workload.compiles:
        flags.append(f"--set memory.compile={str(after.workload.compiles).lower()}")
    return " ".join(flags)


def shard_flag(devices: int, fleet: Fleet) -> str:
    nodes, rest = divmod(devices, fleet.devices_per_node)
    if devices == 1 or rest:
        return "--set shard=none"
    if nodes == 1:
        return "--set shard=node"
    return "--set shard=all" if nodes == fleet.nodes else f'--set "shard={nodes} nodes"'
