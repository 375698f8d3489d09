"""What the devices cost until the run has ended, and its checkpoints after that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.cli.plan.figure_text import PlanEntry, PlanSection, money
from headway.plan.cost import Cost, cost_of, kept_checkpoint_bytes
from headway.plan.prices import NodePrice, how_to_price, node_price, storage_price

if TYPE_CHECKING:
    from headway.cli.plan.asked import Asked
    from headway.plan.figure import Figure
    from headway.plan.fleet import Fleet
    from headway.plan.workload import Workload


@dataclass(frozen=True)
class PlannedCost:
    cost: Cost
    price: NodePrice | None
    section: PlanSection
    how_to_price: str | None
    """What to set if there is no price."""


def hourly_words(asked: Asked, fleet: Fleet) -> str | None:
    """What can be said of a run of which only the devices are known."""
    target = asked.place.target.target if asked.place.target else None
    price = node_price(fleet, target.prices if target else {}, target.machine if target else None)
    if price is None:
        return None
    hour = price.usd_per_hour.value * fleet.nodes
    by = "by public pages" if price.published else "by the target's prices"
    words = f"an hour of {fleet} costs {money(hour)}, {by}"
    hours = asked.run.budget.hours
    return words + (f"; {hours:g} hours of its budget {money(hour * hours)}" if hours else "")


def planned_cost(asked: Asked, workload: Workload, fleet: Fleet, seconds: Figure) -> PlannedCost:
    target = asked.place.target.target if asked.place.target else None
    prices = target.prices if target else {}
    price = node_price(fleet, prices, target.machine if target else None)
    run = asked.run
    kept = kept_checkpoint_bytes(
        workload.model.size.parameters,
        run.checkpoint.keep,
        workload.steps,
        bool(run.data.validation),
    )
    tokens = (workload.steps or 0) * workload.tokens_per_step
    cost = cost_of(fleet, seconds, tokens, price, kept, storage_price(prices))
    kind = fleet.device.name if fleet.device else "cpu"
    hint = how_to_price(kind, fleet.devices_per_node) if price is None else None
    section = _section(cost, price, fleet, asked.place.is_here)
    return PlannedCost(cost, price, section, hint)


def _section(cost: Cost, price: NodePrice | None, fleet: Fleet, is_here: bool) -> PlanSection:
    hours = PlanEntry(
        "node_hours", "node hours", cost.node_hours, "number", is_detail=is_here and price is None
    )
    entries = [hours]
    if price is not None:
        by = "public pages: not your price" if price.published else "of the target"
        if 0 < fleet.spot_nodes < fleet.nodes:
            whose = "public pages" if price.published else "of the target"
            by = f"{whose}, {fleet.spot_nodes} of {fleet.nodes} spot"
        entries.append(
            PlanEntry("usd_per_node_hour", "a node an hour", price.usd_per_hour, "usd", by)
        )
    if cost.usd is not None:
        entries.append(PlanEntry("usd", "in all", cost.usd, "usd"))
    if (each := cost.usd_per_million_tokens) is not None:
        entries.append(PlanEntry("usd_per_million_tokens", "a million tokens", each, "usd"))
    entries.append(
        PlanEntry("checkpoint_bytes", "checkpoints", cost.checkpoint_bytes, "bytes", "kept")
    )
    if cost.storage_usd_per_month is not None:
        entries.append(
            PlanEntry("storage_usd_per_month", "their storage", cost.storage_usd_per_month, "usd")
        )
    return PlanSection("cost", "Cost", tuple(entries))
