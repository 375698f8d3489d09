"""The way that `auto` takes: never one that does not fit, and hardly slower than the best of all
ways that there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from headway.plan.accelerators import find_device
from headway.plan.fit import LEAST_GAIN, cheaper_changes, chosen_way
from headway.plan.fleet import Fleet
from headway.plan.search import SHARDING_GAIN, all_shards, fits, step_seconds
from headway.plan.workload import Layout, Workload, workload_of
from headway.spec.load import load_run, preset_names
from headway.spec.resolve import ALL_BLOCKS
from headway.spec.run_file import RunFile

VOCABULARY = 32000
SHAPES = [("H100", 8, 8), ("H100", 8, 1), ("H100", 1, 1), ("A100-40GB", 8, 4), ("L4", 4, 1)]
MOST_SLOWER = 1.02


@cache
def read(preset: str) -> tuple[RunFile, Workload]:
    run = load_run(preset, ["shard=auto"]).run
    workload = workload_of(run, VOCABULARY)
    assert workload is not None
    return run, workload


def all_ways(workload: Workload, fleet: Fleet) -> Iterator[tuple[Workload, Layout]]:
    """Yield every size of micro-batch up to a device's share of the batch and 65,536 tokens, every
    sharding, and every number of blocks (of many, each eighth)."""
    share = -(-workload.global_batch // fleet.num_devices)
    layers = workload.model.size.num_layers
    blocks = sorted({*range(0, layers, max(1, layers // 8)), layers})
    for micro in range(1, max(1, min(share, 2**16 // workload.sequence_length)) + 1):
        for shards in all_shards(fleet):
            for number in blocks:
                yield replace(workload, micro=micro), Layout(shards, number)


def seconds_of_best(
    workload: Workload, fleet: Fleet, is_narrow: bool = True, shards: int | None = None
) -> float | None:
    """Return the least time of a step of all ways that fit. `is_narrow`: of those whose copy is on
    one node, if there are any. `shards`: of those whose copy is on so many devices."""
    timed = (
        (is_narrow and layout.shard_devices > fleet.devices_per_node, seconds, sized, layout)
        for sized, layout in all_ways(workload, fleet)
        if shards in (None, layout.shard_devices)
        and (seconds := step_seconds(sized, fleet, layout)) is not None
    )
    ordered = sorted(timed, key=lambda one: one[:2])
    return next((seconds for _, seconds, *way in ordered if fits(way[0], fleet, way[1])), None)


@pytest.mark.parametrize(("kind", "devices", "nodes"), SHAPES)
@pytest.mark.parametrize("preset", ["gpt2-xl", "llama2-7b", "llama2-70b"])
def test_auto_fits_and_is_within_two_percent_of_the_best(
    preset: str, kind: str, devices: int, nodes: int
) -> None:
    require_near_the_best(preset, kind, devices, nodes)


@pytest.mark.long("a minute; the gate has three presets")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "devices", "nodes"), SHAPES)
def test_every_preset_fits_and_is_within_two_percent_of_the_best(
    kind: str, devices: int, nodes: int
) -> None:
    for preset in preset_names():
        require_near_the_best(preset, kind, devices, nodes)


def require_near_the_best(preset: str, kind: str, devices: int, nodes: int) -> None:
    run, workload = read(preset)
    device = find_device(kind)
    assert device is not None
    fleet = Fleet(device, devices, nodes)
    way = chosen_way(run, workload, fleet)
    best = seconds_of_best(workload, fleet)
    if best is None:
        assert way.layout.recomputed_blocks == ALL_BLOCKS, "nothing fits: what needs least"
        return
    assert fits(way.workload, fleet, way.layout), way
    assert way.seconds is not None
    assert way.seconds <= MOST_SLOWER / (1 - SHARDING_GAIN) * best, way
    of_its_shards = seconds_of_best(workload, fleet, shards=way.layout.shard_devices)
    assert of_its_shards is not None
    assert way.seconds <= MOST_SLOWER * of_its_shards, way
    changes = list(cheaper_changes(run, workload, fleet, way))
    for change in changes:
        assert fits(change.way.workload, fleet, change.way.layout), change.flags
    if changes:
        cheapest, compiled = changes[0].way.seconds, replace(workload, compiles=True)
        least = seconds_of_best(compiled, fleet, is_narrow=False)
        assert cheapest is not None
        assert least is not None
        most = MOST_SLOWER / (1 - max(LEAST_GAIN, SHARDING_GAIN))
        assert cheapest <= most * least, changes[0].flags


def test_the_cost_of_llama2_7b_on_64_devices() -> None:
    """10,034 node hours when everything was recomputed."""
    run, workload = read("llama2-7b")
    device = find_device("H100")
    assert device is not None
    assert workload.steps is not None
    fleet = Fleet(device, 8, 8)
    way = chosen_way(run, workload, fleet)
    changes = {change.flags: change.way for change in cheaper_changes(run, workload, fleet, way)}
    compiled = changes["--set memory.compile=true"]
    for one, most in ((way, 8_300), (compiled, 7_300)):
        assert one.seconds is not None
        assert one.seconds * workload.steps / 3600 * fleet.nodes <= most
