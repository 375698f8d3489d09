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
    from headway.plan.workload import Layout, Workload

MOST_IDLE = 0.1
"""Share of the devices' time. A plan that leaves more of it idle fails."""
YEAR_SECONDS = 365 * 86400.0
QUARTER_SECONDS = 90 * 86400.0
MOST_TRIES = 6
PlanOn = Callable[["Fleet"], "FleetPlan"]


def idle_share(workload: Workload, layout: Layout, num_devices: int) -> float:
    """Return the share of the devices' time without a micro-batch."""
    count = _num_micro_batches(workload)
    passes = share_of(count, num_devices, min(layout.shard_devices, num_devices), 0).num_passes
    return 1 - count / (passes * num_devices)


def idle_words(workload: Workload, layout: Layout, num_devices: int) -> str:
    count = _num_micro_batches(workload)
    of = f"{count:,} micro-batches of {workload.micro} for {num_devices:,} devices"
    if count < num_devices:
        return f"{num_devices - count:,} of them have no work: {of}"
    share = shown(idle_share(workload, layout, num_devices), "share")
    return f"{share} of their time: {of}"


def _num_micro_batches(workload: Workload) -> int:
    return num_micro_batches(workload.global_batch, workload.micro)


def busy_nodes(plan: FleetPlan, workload: Workload, candidates: range) -> int | None:
    """Return the first of these numbers of nodes whose devices have work."""
    assert plan.layout is not None
    each = plan.fleet.devices_per_node
    whole = copy_nodes(plan.layout, each)
    for nodes in candidates:
        is_whole = nodes % whole == 0
        if is_whole and idle_share(workload, plan.layout, nodes * each) <= MOST_IDLE:
            return nodes
    return None


def change_that_keeps_busy(
    plan: FleetPlan, workload: Workload, plan_on: PlanOn
) -> tuple[str, str] | None:
    """Return the option that gives every device work, and what it saves."""
    assert plan.layout is not None
    most = busy_nodes(plan, workload, range(plan.fleet.nodes - 1, 0, -1))
    if most is not None:
        # As few as divide the batch into as many passes: the time is the same.
        passes = math.ceil(_num_micro_batches(workload) / (most * plan.fleet.devices_per_node))
        least = math.ceil(_num_micro_batches(workload) / (passes * plan.fleet.devices_per_node))
        nodes = busy_nodes(plan, workload, range(least, most)) or most
        other = plan_on(replace(plan.fleet, nodes=nodes))
        return f"--nodes {nodes}", _saved_words(plan, other)
    micro = max(1, workload.global_batch // plan.fleet.num_devices)
    smaller = replace(workload, micro=micro)
    if idle_share(smaller, plan.layout, plan.fleet.num_devices) <= MOST_IDLE:
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


def long_run_words(plan: FleetPlan, workload: Workload, plan_on: PlanOn) -> str:
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
        nodes = busy_nodes(plan, workload, range(wanted, 2 * wanted)) or busy_nodes(
            plan, workload, range(wanted - 1, now, -1)
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
