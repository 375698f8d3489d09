"""Whether all devices of a fleet have work, and on how many nodes a run ends in a quarter."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from headway.cli.plan.figure_text import money, shown
from headway.plan.batch_division import num_micro_batches, share_of
from headway.plan.fit import copy_nodes

if TYPE_CHECKING:
    from headway.cli.plan.run_plan import FleetPlan
    from headway.plan.fleet import Fleet
    from headway.plan.search import Way

MOST_IDLE = 0.1
"""Share of the devices' time. A plan that leaves more of it idle fails."""
YEAR_SECONDS = 365 * 86400.0
QUARTER_SECONDS = 90 * 86400.0
MOST_TRIES = 6
PlanOn = Callable[["Fleet"], "FleetPlan"]


def idle_share(way: Way, num_devices: int) -> float:
    """Return the share of the devices' time without a micro-batch."""
    count = _num_micro_batches(way)
    group = min(way.layout.shard_devices, num_devices)
    passes = share_of(count, num_devices, group, 0).num_passes
    return 1 - count / (passes * num_devices)


def idle_words(way: Way, num_devices: int) -> str:
    count = _num_micro_batches(way)
    of = f"{count:,} micro-batches of {way.workload.micro} for {num_devices:,} devices"
    if count < num_devices:
        return f"{num_devices - count:,} of them have no work: {of}"
    share = shown(idle_share(way, num_devices), "share")
    return f"{share} of their time: {of}"


def _num_micro_batches(way: Way) -> int:
    return num_micro_batches(way.workload.global_batch, way.workload.micro)


def busy_nodes(plan: FleetPlan, candidates: range) -> int | None:
    """Return the first of these numbers of nodes whose devices have work."""
    assert plan.way is not None
    way, each = plan.way, plan.fleet.devices_per_node
    if way.workload.is_micro_open:  # on more nodes it may be smaller
        way = replace(way, workload=replace(way.workload, micro=1))
    whole = copy_nodes(way.layout, each)
    for nodes in candidates:
        is_whole = nodes % whole == 0
        if is_whole and idle_share(way, nodes * each) <= MOST_IDLE:
            return nodes
    return None


def change_that_keeps_busy(plan: FleetPlan, way: Way, plan_on: PlanOn) -> tuple[str, str] | None:
    """Return the option that gives every device work, and what it saves."""
    most = busy_nodes(plan, range(plan.fleet.nodes - 1, 0, -1))
    if most is not None:
        # As few as divide the batch into as many passes: the time is the same.
        passes = math.ceil(_num_micro_batches(way) / (most * plan.fleet.devices_per_node))
        least = math.ceil(_num_micro_batches(way) / (passes * plan.fleet.devices_per_node))
        nodes = busy_nodes(plan, range(least, most)) or most
        other = plan_on(replace(plan.fleet, nodes=nodes))
        return f"--nodes {nodes}", _saved_words(plan, other)
    micro = max(1, way.workload.global_batch // plan.fleet.num_devices)
    smaller = replace(way, workload=replace(way.workload, micro=micro))
    if idle_share(smaller, plan.fleet.num_devices) <= MOST_IDLE:
        return f"--set batch.micro={micro}", "in a new run; every device has work"
    return None


def _saved_words(plan: FleetPlan, other: FleetPlan) -> str:
    if plan.seconds is None or other.seconds is None:
        return "every device has work"
    time = f"{shown(other.seconds.value, 'seconds')} instead of {_time(plan)}"
    if plan.usd is None or other.usd is None:
        return f"every device has work; {time}"
    saved = money(plan.usd.value - other.usd.value)
    return f"saves {saved} of {money(plan.usd.value)}, and takes {time}"


def _time(plan: FleetPlan) -> str:
    assert plan.seconds is not None
    return shown(plan.seconds.value, "seconds")


def long_run_words(plan: FleetPlan, plan_on: PlanOn) -> str:
    """Return what to say of a run of more than a year, or an empty string."""
    if plan.seconds is None or plan.seconds.value <= YEAR_SECONDS:
        return ""
    one = plan
    for _ in range(MOST_TRIES):
        assert one.seconds is not None
        if one.seconds.value <= QUARTER_SECONDS:
            return f"{_time(plan)}; --nodes {one.fleet.nodes} makes it {_time(one)}"
        now = one.fleet.nodes
        wanted = max(now + 1, math.ceil(now * one.seconds.value / QUARTER_SECONDS))
        nodes = busy_nodes(plan, range(wanted, 2 * wanted)) or busy_nodes(
            plan, range(wanted - 1, now, -1)
        )
        if nodes is None:
            break
        found = plan_on(replace(plan.fleet, nodes=nodes))
        if found.seconds is None:
            break
        one = found
    if one is plan:
        return f"{_time(plan)}; more nodes have no work at this global batch"
    most = f"--nodes {one.fleet.nodes}, the most that have work at this global batch"
    return f"{_time(plan)}; {most}, make it {_time(one)}"
