"""What the nodes of a run cost on a target, for the coordinator that counts it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from headway.kube.pod_overrides import TargetMismatch
from headway.plan.prices import given_price, how_to_price
from headway.spec.price_config import CPU_PRICE, PriceConfig, dollars
from headway.spec.quantities import Accelerators
from headway.spec.resolve import Resolved
from headway.spec.target_file import Target


@dataclass(frozen=True)
class NodePrices:
    """Dollars per hour of a node."""

    kinds: Mapping[str, PriceConfig]
    """By the devices of a node, such as `H100:8`: one, or all that the run may have."""
    on_demand_below: int | None
    """Pods with an index below it are not on spot machines; None: none is."""
    spot_label: tuple[str, str] | None

    def text(self) -> str:
        """For the coordinator's environment."""
        kinds = {kind: [price.on_demand, price.spot] for kind, price in self.kinds.items()}
        return json.dumps([kinds, self.on_demand_below, self.spot_label])

    @classmethod
    def parse(cls, text: str) -> NodePrices:
        kinds, below, label = json.loads(text)
        return cls(
            {kind: PriceConfig(on_demand=each, spot=spot) for kind, (each, spot) in kinds.items()},
            below,
            (label[0], label[1]) if label is not None else None,
        )


def node_prices(resolved: Resolved, target: Target) -> NodePrices | None:
    """None: nothing is counted, for lack of a price. Raises TargetMismatch if a budget needs it."""
    resources = resolved.run.resources
    wanted = resources.accelerators
    if wanted is None or wanted.is_cpu:
        wanted = Accelerators(CPU_PRICE, resolved.ranks_per_node)
    kinds = {}
    for one in wanted.choices:
        price = given_price(target.prices, one.kind)
        if price is None:
            _refuse_budget(resolved, one)
            return None
        number = 1 if one.is_cpu else one.count
        spot = None if price.spot is None else price.spot * number
        kinds[str(one)] = PriceConfig(on_demand=price.on_demand * number, spot=spot)
    label = next(iter(target.spot_label.items()), None)
    return NodePrices(kinds, resources.on_demand_nodes, label)


def _refuse_budget(resolved: Resolved, one: Accelerators) -> None:
    budget = resolved.run.budget.usd
    if budget is not None:
        raise TargetMismatch(
            f"there is no price of {one.kind}, and budget.usd is {dollars(budget)}: nothing says "
            "what the run has cost",
            ("prices",),
            f"{how_to_price(one.kind, one.count)}; or remove budget.usd",
        )
