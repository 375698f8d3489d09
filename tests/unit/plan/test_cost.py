"""What a run costs in all, with what that rests on."""

from __future__ import annotations

import pytest

from headway.plan.accelerators import find_device
from headway.plan.cost import breaks_budget, cost_of, kept_checkpoint_bytes
from headway.plan.figure import Figure
from headway.plan.fleet import Fleet
from headway.plan.prices import NodePrice, node_price
from headway.spec.price_config import PriceConfig
from headway.spec.run_file import KeepConfig

FLEET = Fleet(find_device("H100"), devices_per_node=8, nodes=4)
SECONDS = Figure(36000.0, 30000.0, 45000.0, "fitted", "1,000 steps")
STORED = Figure.exact(40e9, "")


def given(each: float) -> NodePrice:
    found = node_price(FLEET, {"H100": PriceConfig(on_demand=each)}, None)
    assert found is not None
    return found


def test_the_total_is_nodes_times_hours_times_price() -> None:
    cost = cost_of(FLEET, SECONDS, 2_000_000_000, given(2.5), STORED, 0.02)
    assert cost.node_hours.value == pytest.approx(40.0)
    assert cost.usd is not None
    assert cost.usd.value == pytest.approx(40 * 8 * 2.5)
    assert (cost.usd.low, cost.usd.high) == pytest.approx((800 * 30 / 36, 800 * 45 / 36))
    assert cost.usd.basis == "fitted", "the time is less sure than the price"
    assert cost.usd_per_million_tokens is not None
    assert cost.usd_per_million_tokens.value == pytest.approx(0.4)
    assert cost.storage_usd_per_month is not None
    assert cost.storage_usd_per_month.value == pytest.approx(0.8)


def test_the_range_of_prices_widens_the_total() -> None:
    price = node_price(FLEET, {}, None)
    assert price is not None
    cost = cost_of(FLEET, Figure.exact(3600.0, ""), 1_000_000, price, STORED)
    assert cost.usd is not None
    assert (cost.usd.low, cost.usd.high) == pytest.approx((4 * 25.6, 4 * 55.04))
    assert cost.usd.basis == "published"
    assert "2026-07-20" in cost.usd.reason
    assert cost.storage_usd_per_month is None


def test_without_a_price_there_are_hours() -> None:
    cost = cost_of(FLEET, SECONDS, 1_000_000, None, STORED)
    assert (cost.usd, cost.usd_per_million_tokens) == (None, None)
    assert cost.node_hours.value == pytest.approx(40.0)


def test_a_budget_that_is_too_small() -> None:
    cost = cost_of(FLEET, SECONDS, 1_000_000, given(2.5), STORED)
    assert breaks_budget(cost, 800.0) is None
    assert breaks_budget(cost, None) is None
    why = breaks_budget(cost, 400.0)
    assert why is not None
    assert "it costs $800.00, and budget.usd is $400.00: it would stop after 50%" in why
    assert breaks_budget(cost, 800.0, spent_usd=1.0) is not None
    assert breaks_budget(cost_of(FLEET, SECONDS, 1, None, STORED), 1.0) is None


def test_checkpoints_that_stay() -> None:
    each = 12 * 1_000_000
    found = kept_checkpoint_bytes(1_000_000, KeepConfig(), steps=1000)
    assert (found.low, found.value) == (3 * each, 4 * each)
    alone = kept_checkpoint_bytes(1_000_000, KeepConfig(), steps=1000, has_evaluations=False)
    assert (alone.low, alone.value) == (3 * each, 3 * each)
    forever = KeepConfig.model_validate({"last": 2, "best": 0, "every": "100 steps"})
    found = kept_checkpoint_bytes(1_000_000, forever, steps=1000)
    assert (found.low, found.value) == (10 * each, 12 * each)
    assert "not in it" in kept_checkpoint_bytes(1_000_000, forever, steps=None).reason
