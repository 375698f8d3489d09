"""What a run costs: its nodes until it has finished, and the storage of its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from headway.memory_limits import byte_size
from headway.plan.figure import Figure, combined
from headway.plan.fleet import Fleet
from headway.plan.memory_need import CHECKPOINT_BYTES
from headway.plan.prices import NodePrice
from headway.spec.price_config import dollars
from headway.spec.run_file import KeepConfig

HOUR = 3600.0
GB = 1e9
"""Clouds sell storage by 10^9 bytes; some say GB and mean 2^30, which is 7 % less."""


@dataclass(frozen=True)
class Cost:
    node_hours: Figure
    """Hours of all nodes together, until the run has finished."""
    usd: Figure | None
    """Of those; None: there is no price."""
    usd_per_million_tokens: Figure | None
    checkpoint_bytes: Figure
    """Of the checkpoints that are kept when the run has finished."""
    storage_usd_per_month: Figure | None
    """Of those; None: there is no price."""


def cost_of(
    fleet: Fleet,
    seconds: Figure,
    tokens: int,
    price: NodePrice | None,
    checkpoint_bytes: Figure,
    storage_usd_per_gb_month: float | None = None,
) -> Cost:
    """`seconds` from the launch to the last step, with what is lost to interruptions. `tokens` that
    are trained on. `price` of a node, from `prices.node_price`."""
    several = f"{fleet.nodes} nodes x " if fleet.nodes > 1 else ""
    hours = seconds.times(
        fleet.nodes / HOUR, f"{several}{seconds.value / HOUR:,.2f} h: {seconds.reason}"
    )
    usd = None if price is None else _total(hours, price)
    million = tokens / 1e6
    return Cost(
        node_hours=hours,
        usd=usd,
        usd_per_million_tokens=None
        if usd is None or not tokens
        else usd.times(1 / million, f"{dollars(usd.value)} for {million:,.1f} million tokens"),
        checkpoint_bytes=checkpoint_bytes,
        storage_usd_per_month=_storage(checkpoint_bytes, storage_usd_per_gb_month),
    )


def breaks_budget(cost: Cost, budget_usd: float | None, spent_usd: float = 0.0) -> str | None:
    """Why, in words, if the total is above the budget; None also if nothing says what it costs."""
    if cost.usd is None or budget_usd is None:
        return None
    total = spent_usd + cost.usd.value
    if total <= budget_usd:
        return None
    left = max(0.0, budget_usd - spent_usd)
    share = left / cost.usd.value if cost.usd.value else 1.0
    spent = f" beside {dollars(spent_usd)} that are spent" if spent_usd else ""
    return (
        f"it costs {dollars(cost.usd.value)}{spent}, and budget.usd is {dollars(budget_usd)}: it "
        f"would stop after {share:.0%} of what is left"
    )


def kept_checkpoint_bytes(
    parameters: int, keep: KeepConfig, steps: int | None, has_evaluations: bool = True
) -> Figure:
    """Of all that stay when the run has finished. `steps`: None if only the data determines
    them. The best one may be among the last, and a milestone too."""
    each = parameters * CHECKPOINT_BYTES
    best = keep.best if has_evaluations else 0
    every = keep.every
    milestones = None if every is None else every.num_due(steps) if steps is not None else None
    most = keep.last + best + (milestones or 0)
    least = max(keep.last, milestones or 0)
    lacks = "; milestones of checkpoint.keep.every are not in it: the data decides their number"
    reason = (
        f"at most {most} checkpoints of {byte_size(each)}: {CHECKPOINT_BYTES} bytes a parameter"
        + (lacks if every is not None and milestones is None else "")
    )
    return Figure(float(most * each), float(least * each), float(most * each), "counted", reason)


def _total(hours: Figure, price: NodePrice) -> Figure:
    rate = price.usd_per_hour
    return combined(
        lambda hours, rate: hours * rate,
        {"hours": hours, "rate": rate},
        f"{hours.value:,.1f} node hours x {dollars(rate.value)} ({rate.reason})",
    )


def _storage(stored: Figure, usd_per_gb_month: float | None) -> Figure | None:
    if usd_per_gb_month is None:
        return None
    reason = f"{stored.value / GB:,.1f} GB x {dollars(usd_per_gb_month)} a month"
    return stored.times(usd_per_gb_month / GB, reason)
