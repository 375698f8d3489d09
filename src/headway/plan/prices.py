"""What a node costs an hour: by the target's own prices, else by what dated public pages state.

The table is prices.toml, beside this file. None of its prices is worked out from another, but for
the division of a machine's price by its devices; what no page states has no price.
"""

from __future__ import annotations

import difflib
import functools
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from headway.plan.accelerators import DEVICES, Device, find_device, folded_name
from headway.plan.device_refusals import DeviceRefusal
from headway.plan.figure import Figure, combined
from headway.plan.fleet import Fleet
from headway.spec.price_config import (
    ANY_PRICE,
    CPU_PRICE,
    STORAGE_PRICE,
    PriceConfig,
    dollars,
)

Capacity = Literal["on_demand", "spot"]
PRICES = ("prices",)


@dataclass(frozen=True)
class PublishedPrice:
    """What a page said on its date."""

    provider: str
    offer: str
    """Machine type, or what the page calls it."""
    device: str
    """As in `plan.accelerators`."""
    kind: Capacity
    usd_per_device_hour: float
    num_devices: int | None
    """Of the machine; None: rented one by one."""
    region: str | None
    date: str
    page: str
    """Its address."""

    @property
    def words(self) -> str:
        where = f", {self.region}" if self.region else ""
        each = dollars(self.usd_per_device_hour)
        return f"{each} at {self.provider} ({self.offer}{where}, {self.date})"


@dataclass(frozen=True)
class NodePrice:
    """Of one node of a fleet; of the average one where only some are spot machines."""

    usd_per_hour: Figure
    published: tuple[PublishedPrice, ...]
    """What it rests on; empty: the user's own price."""

    @property
    def pages(self) -> str:
        """Whose prices, and of when; empty: the user's own."""
        dates = sorted({price.date for price in self.published})
        when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}" if dates else ""
        whose = ", ".join(f"{price.provider} ({price.offer})" for price in self.published)
        return f"public pages of {when}: {whose}" if when else ""


@functools.cache
def published_prices() -> tuple[PublishedPrice, ...]:
    text = (resources.files("headway.plan") / "prices.toml").read_text("utf-8")
    table = tomllib.loads(text)
    return tuple(
        PublishedPrice(
            provider=row["provider"],
            offer=row["offer"],
            device=row["device"],
            kind=row["kind"],
            usd_per_device_hour=row["usd_per_hour"] / row["num_gpus"]
            if "usd_per_hour" in row
            else row["usd_per_gpu_hour"],
            num_devices=row.get("num_gpus"),
            region=row.get("region"),
            date=row["date"],
            page=table["source"][row["source"]]["url"],
        )
        for row in table["price"]
    )


def node_price(
    fleet: Fleet, prices: Mapping[str, PriceConfig], machine: str | None
) -> NodePrice | None:
    """On average, where only some nodes are spot machines. `prices` and `machine` are those of the
    target, empty and None without one. None: nobody says, or not of both kinds; `how_to_price` is
    what to tell the user."""
    spot = fleet.spot_nodes
    if spot in (0, fleet.nodes):
        return _price_of(fleet, spot > 0, prices, machine)
    on_demand, rest = (_price_of(fleet, is_spot, prices, machine) for is_spot in (False, True))
    if on_demand is None or rest is None:
        return None
    return _average(fleet, on_demand, rest)


def _price_of(
    fleet: Fleet, is_spot: bool, prices: Mapping[str, PriceConfig], machine: str | None
) -> NodePrice | None:
    given = given_price(prices, fleet.device.name if fleet.device else CPU_PRICE)
    if given is not None:
        return NodePrice(_of_target(fleet, is_spot, given), ())
    if fleet.device is None:
        return None
    fitting = _fitting(fleet.device, fleet.devices_per_node, is_spot, machine)
    if not fitting:
        return None
    return NodePrice(_of_table(fleet, is_spot, fitting, machine), tuple(fitting))


def _average(fleet: Fleet, on_demand: NodePrice, spot: NodePrice) -> NodePrice:
    """Of nodes of both kinds."""
    share = fleet.spot_nodes / fleet.nodes
    rates = {"on_demand": on_demand.usd_per_hour, "spot": spot.usd_per_hour}
    others = fleet.nodes - fleet.spot_nodes
    figure = combined(
        lambda on_demand, spot: (1 - share) * on_demand + share * spot,
        rates,
        f"the average of {others} on demand ({rates['on_demand'].reason}) and {fleet.spot_nodes} "
        f"spot ({rates['spot'].reason})",
    )
    both = dict.fromkeys((*on_demand.published, *spot.published))
    return NodePrice(figure, tuple(both))


def given_price(prices: Mapping[str, PriceConfig], kind: str) -> PriceConfig | None:
    """The user's price for this kind of device, per device hour; of `cpu` per node hour. The most
    exact name counts: `A100-80GB` before `A100` before `gpu`."""
    own = {folded_name(name): price for name, price in prices.items() if name != STORAGE_PRICE}
    folded = folded_name(kind)
    if folded == CPU_PRICE:
        return own.get(CPU_PRICE)
    device = find_device(kind)
    alike = [
        price
        for name, price in own.items()
        if device is not None and find_device(name) is device and "-" in name
    ]
    named = [own.get(folded), *alike, own.get(folded.split("-")[0]), own.get(ANY_PRICE)]
    return next((price for price in named if price is not None), None)


def storage_price(prices: Mapping[str, PriceConfig]) -> float | None:
    """Dollars per GB and month."""
    price = prices.get(STORAGE_PRICE)
    return None if price is None else price.on_demand


def unknown_price(
    prices: Mapping[str, PriceConfig], own_kinds: Iterable[str] = ()
) -> DeviceRefusal | None:
    """A price of a device that nobody knows, which would never be used. `own_kinds`: those that the
    target describes itself (`accelerators`)."""
    known = {CPU_PRICE, ANY_PRICE, STORAGE_PRICE, *map(folded_name, own_kinds)}
    names = [device.name for device in DEVICES]
    families = {folded_name(name).split("-")[0] for name in names}
    found: dict[str, str] = {}
    for name in prices:
        device, folded = find_device(name), folded_name(name)
        if device is None and folded not in known and folded not in families:
            near = difflib.get_close_matches(folded, [*map(folded_name, names), *known], n=1)
            meant = next((one for one in names if [folded_name(one)] == near), "".join(near))
            return DeviceRefusal(
                ((*PRICES, name),),
                f"prices.{name}: {name} is not a device that Headway knows",
                f"did you mean {meant}?"
                if meant
                else f"known are {', '.join(names)}, and cpu, gpu, storage; another one needs its "
                f"labels in the target: accelerators: {{{name}: [{{LABEL: VALUE}}]}}",
            )
        # A family's name is for all of its boards, beside one of them.
        is_board = device is not None and (
            folded not in families or folded_name(device.name) == folded
        )
        key = device.name if device is not None and is_board else folded
        if key in found:
            return DeviceRefusal(
                ((*PRICES, name),),
                f"prices.{name}: {found[key]} is the same device, and has a price already",
                f"remove {name} or {found[key]}",
            )
        found[key] = name
    return None


def how_to_price(kind: str, num_devices: int) -> str:
    """The key of the target to set, with what pages say about such a device."""
    if folded_name(kind) == CPU_PRICE:
        return "in the target: prices: {cpu: DOLLARS}, per hour of a node"
    hint = f"in the target: prices: {{{kind}: {{on_demand: DOLLARS, spot: DOLLARS}}}}, per device "
    device = find_device(kind)
    stated = _fitting(device, num_devices, is_spot=False, machine=None) if device else []
    examples = "; ".join(price.words for price in stated[:3])
    return f"{hint}hour" + (f"; stated on public pages: {examples}" if examples else "")


def _of_target(fleet: Fleet, is_spot: bool, price: PriceConfig) -> Figure:
    number = fleet.devices_per_node if fleet.device is not None else 1
    has_spot = is_spot and price.spot is not None
    each = price.spot if price.spot is not None and has_spot else price.on_demand
    kind = "spot" if has_spot else "on demand"
    by = "an hour" if fleet.device is None else f"x {number} an hour"
    lacks = "; no spot price is given, and on demand is the most" if is_spot else ""
    reason = f"{dollars(each)} {by}, {kind}, of the target{'' if has_spot else lacks}"
    return Figure.exact(each * number, reason, "given")


def _fitting(
    device: Device, num_devices: int, is_spot: bool, machine: str | None
) -> list[PublishedPrice]:
    """Of the machine alone if it is named. Else of each provider the smallest machine that holds so
    many devices, cheapest first."""
    kind: Capacity = "spot" if is_spot else "on_demand"
    stated = [
        price
        for price in published_prices()
        if price.device == device.name
        and price.kind == kind
        and (price.num_devices is None or price.num_devices >= num_devices)
    ]
    if machine is not None:
        return [price for price in stated if price.offer == machine]
    providers = dict.fromkeys(price.provider for price in stated)
    smallest = [
        min(
            (price for price in stated if price.provider == provider),
            key=lambda price: (price.num_devices or num_devices, price.usd_per_device_hour),
        )
        for provider in providers
    ]
    return sorted(smallest, key=lambda price: price.usd_per_device_hour)


def _of_table(
    fleet: Fleet, is_spot: bool, found: Sequence[PublishedPrice], machine: str | None
) -> Figure:
    number = fleet.devices_per_node
    each = [price.usd_per_device_hour for price in found]
    low, high, middle = min(each), max(each), statistics.median(each)
    named = "; ".join(price.words for price in found)
    kind = "spot" if is_spot else "on demand"
    if machine is not None or len(found) == 1:
        whole = found[0].num_devices
        part = f", {number} of its {whole} devices" if whole and whole > number else ""
        reason = f"{named} x {number} an hour, {kind}{part}; not your price: set `prices`"
        return Figure.exact(each[0] * number, reason, "published")
    reason = (
        f"{dollars(low)} to {dollars(high)} x {number} an hour, {kind}, the middle "
        f"{dollars(middle)}: {named}; set `prices` to yours"
    )
    return Figure(middle * number, low * number, high * number, "published", reason)
