"""What a node costs: the user's own prices first, then what dated pages state, else nothing."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from headway.plan.accelerators import find_device
from headway.plan.fleet import Fleet
from headway.plan.machines import find_machine
from headway.plan.prices import (
    PublishedPrice,
    given_price,
    how_to_price,
    node_price,
    published_prices,
    storage_price,
    unknown_price,
)
from headway.spec.price_config import PriceConfig


def fleet(device: str | None, number: int = 8, is_spot: bool = False) -> Fleet:
    found = find_device(device) if device is not None else None
    return Fleet(found, devices_per_node=number, nodes=1, on_demand_nodes=0 if is_spot else None)


def prices(**given: float | tuple[float, float]) -> dict[str, PriceConfig]:
    return {
        name.replace("_", "-"): PriceConfig(on_demand=each[0], spot=each[1])
        if isinstance(each, tuple)
        else PriceConfig(on_demand=each)
        for name, each in given.items()
    }


@pytest.mark.parametrize("price", published_prices(), ids=lambda one: f"{one.provider}-{one.offer}")
def test_a_published_price_has_a_page_and_a_date(price: PublishedPrice) -> None:
    assert price.page.startswith("https://")
    assert datetime.date.fromisoformat(price.date) >= datetime.date(2026, 1, 1)
    device = find_device(price.device)
    assert device is not None
    assert device.name == price.device
    assert 0.1 < price.usd_per_device_hour < 20
    machine = find_machine(price.offer)
    if machine is not None:
        assert (machine.device, machine.num_devices) == (price.device, price.num_devices)


def test_aws_list_has_every_device_but_boards_that_it_does_not_sell() -> None:
    sold = {price.device for price in published_prices() if price.provider == "AWS"}
    assert len([price for price in published_prices() if price.provider == "AWS"]) == 20
    assert {"T4", "A10G", "L4", "L40S", "H100", "H200", "B200"} < sold


def test_the_price_of_the_target_counts() -> None:
    own = prices(H100=(4.0, 2.0), cpu=0.5)
    found = node_price(fleet("H100"), own, "p5.48xlarge")
    assert found is not None
    assert (found.usd_per_hour.value, found.usd_per_hour.basis) == (32.0, "given")
    assert (found.published, found.pages) == ((), "")
    spot = node_price(fleet("H100", is_spot=True), own, None)
    assert spot is not None
    assert spot.usd_per_hour.value == 16.0
    cpu = node_price(fleet(None, 2), own, None)
    assert cpu is not None
    assert cpu.usd_per_hour.value == 0.5, "per node, whatever its workers"


def test_a_spot_machine_without_a_spot_price_counts_as_on_demand_and_says_so() -> None:
    found = node_price(fleet("H100", is_spot=True), prices(H100=4.0), None)
    assert found is not None
    assert found.usd_per_hour.value == 32.0
    assert "no spot price is given, and on demand is the most" in found.usd_per_hour.reason


def test_nodes_up_to_the_minimum_are_on_demand() -> None:
    mixed = Fleet(find_device("H100"), devices_per_node=8, nodes=8, on_demand_nodes=2)
    found = node_price(mixed, prices(H100=(4.0, 2.0)), None)
    assert found is not None
    assert found.usd_per_hour.value == pytest.approx((2 * 32 + 6 * 16) / 8)
    assert found.usd_per_hour.basis == "given"
    for words in ("2 on demand ($4.00 x 8", "6 spot ($2.00 x 8"):
        assert words in found.usd_per_hour.reason
    small = replace(mixed, nodes=2)
    assert node_price(small, prices(H100=(4.0, 2.0)), None) == node_price(
        replace(small, on_demand_nodes=None), prices(H100=(4.0, 2.0)), None
    )


def test_a_published_price_of_nodes_of_both_kinds_needs_both() -> None:
    mixed = Fleet(find_device("H100"), devices_per_node=1, nodes=4, on_demand_nodes=1)
    found = node_price(mixed, {}, None)
    assert found is not None
    assert {price.kind for price in found.published} == {"on_demand", "spot"}
    assert node_price(replace(mixed, devices_per_node=8), {}, None) is None, "no spot price of 8"


def test_the_machine_of_the_target_has_one_published_price() -> None:
    found = node_price(fleet("H100"), {}, "p5.48xlarge")
    assert found is not None
    figure = found.usd_per_hour
    assert (figure.low, figure.value, figure.high) == (55.04, 55.04, 55.04)
    assert figure.basis == "published"
    assert "AWS (p5.48xlarge, us-east-1, 2026-07-20)" in figure.reason
    assert "not your price" in figure.reason


def test_a_machine_without_a_published_price_has_none() -> None:
    assert node_price(fleet("H100"), {}, "hgx-h100") is None
    assert node_price(fleet("H100"), {}, "a3-megagpu-8g") is None
    assert node_price(fleet("A10G", 1), {}, "g5.2xlarge") is None


def test_without_a_machine_it_is_the_range_over_providers_by_name() -> None:
    found = node_price(fleet("H100"), {}, None)
    assert found is not None
    figure = found.usd_per_hour
    assert (figure.low, figure.high) == (8 * 3.2, 55.04)
    assert figure.low < figure.value < figure.high
    for name in ("AWS", "RunPod", "Lambda", "Hyperstack", "2026-11-09"):
        assert name in figure.reason
    assert [price.provider for price in found.published][-1] == "AWS"
    assert found.pages == (
        "public pages of 2026-07-20 to 2026-11-09: Hyperstack (H100 SXM), RunPod (Secure Cloud, "
        "H100 SXM), Lambda (8x H100 SXM), AWS (p5.48xlarge)"
    )


def test_a_node_is_not_priced_by_machines_that_cannot_hold_it() -> None:
    four = node_price(fleet("T4", 4), {}, None)
    assert four is not None
    assert four.usd_per_hour.value == 3.912
    assert [price.offer for price in four.published] == ["g4dn.12xlarge"]
    one = node_price(fleet("T4", 1), {}, None)
    assert one is not None
    assert [price.offer for price in one.published] == ["g4dn.xlarge"]


def test_a_spot_price_is_never_worked_out_from_another() -> None:
    assert node_price(fleet("A100-80GB", is_spot=True), {}, None) is None
    assert node_price(fleet("H100", is_spot=True), {}, None) is None, "only of one device"
    one = node_price(fleet("H100", 1, is_spot=True), {}, None)
    assert one is not None
    assert [price.provider for price in one.published] == ["Google Cloud"]


def test_the_most_exact_name_counts() -> None:
    own = prices(A100_80GB=3.0, A100=2.0, gpu=1.0)
    for kind, each in (("A100-80", 3.0), ("A100-40GB", 2.0), ("A100", 2.0), ("H100-NVL", 1.0)):
        found = given_price(own, kind)
        assert found is not None
        assert found.on_demand == each
    assert given_price(own, "cpu") is None
    assert given_price(prices(H100_PCIe=2.0), "H100") is None
    assert given_price(prices(storage=0.02), "storage") is None
    assert storage_price(prices(storage=0.02)) == 0.02
    assert storage_price({}) is None


@pytest.mark.parametrize("name", ["H100", "a100-80", "A100", "V100-PCIe-16GB", "cpu", "gpu"])
def test_names_of_devices_are_known(name: str) -> None:
    assert unknown_price({name: PriceConfig(on_demand=1.0)}) is None


def test_an_unknown_device_is_refused_with_what_is_meant() -> None:
    price = PriceConfig(on_demand=1.0)
    refused = unknown_price({"H10O": price})
    assert refused is not None
    assert refused.keys == (("prices", "H10O"),)
    assert refused.problem == "prices.H10O: H10O is not a device that Headway knows"
    assert refused.hint == "did you mean H100?"
    refused = unknown_price({"MI300X": price})
    assert refused is not None
    assert "accelerators: {MI300X: [{LABEL: VALUE}]}" in refused.hint
    assert unknown_price({"H100-NVL": price}, ["h100-nvl"]) is None
    refused = unknown_price({"H100": price, "H100-SXM": price})
    assert refused is not None
    assert "H100 is the same device" in refused.problem
    assert unknown_price({"A100": price, "A100-40GB": price}) is None


def test_what_to_set_is_named_with_what_pages_state() -> None:
    hint = how_to_price("H100", 8)
    assert hint.startswith("in the target: prices: {H100: {on_demand: DOLLARS, spot: DOLLARS}}")
    assert "Hyperstack (H100 SXM, 2026-08-26)" in hint
    assert how_to_price("cpu", 2) == "in the target: prices: {cpu: DOLLARS}, per hour of a node"
    assert "stated" not in how_to_price("H100-NVL", 8)
