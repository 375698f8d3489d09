"""headway plan --compare: accelerators and numbers of nodes side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headway.cli.model_shape import UnknownShape, read_workload
from headway.cli.plan.asked import fleets_of, numbers_of_nodes, shape_of
from headway.cli.plan.estimate import fleet_plan, model_section
from headway.cli.plan.figure_text import money, shown
from headway.cli.plan.run_plan import FleetPlan, RunPlan
from headway.errors import BadInput
from headway.plan.accelerators import find_device
from headway.plan.fleet import Fleet

if TYPE_CHECKING:
    from headway.cli.plan.asked import Asked
    from headway.cli.terminal import Line, Style
    from headway.plan.figure import Figure
    from headway.plan.workload import Workload

AUTO = "auto"
DAY = 86400.0
AUTO_DEVICES = ("L4", "A10G", "L40S", "A100-40GB", "A100-80GB", "H100", "H200", "B200")
AUTO_SIZES = ((1, 1), (4, 1), (8, 1), (8, 2), (8, 4), (8, 8), (8, 16), (8, 32), (8, 64), (8, 128))
"""Devices of a node, and nodes."""
LONGEST_DAYS = 120.0
"""Nobody rents for longer: of each kind the smallest size that is faster, and four times that."""
COLUMNS = (27, 18, 11, 12)


@dataclass(frozen=True)
class ComparedPlans:
    plan: RunPlan

    @property
    def good(self) -> list[FleetPlan]:
        return [one for one in self.plan.fleets if one.fits.verdict in ("yes", "maybe")]

    @property
    def cheapest(self) -> FleetPlan | None:
        return _least(self.good, lambda one: one.usd)

    @property
    def fastest(self) -> FleetPlan | None:
        return _least(self.good, lambda one: one.seconds)

    def mark(self, one: FleetPlan) -> str:
        named = {"cheapest": self.cheapest, "fastest": self.fastest}
        marks = [mark for mark, which in named.items() if which is one]
        return "best" if len(marks) > 1 else "".join(marks)


def compared(asked: Asked, shapes: str, nodes: str | None, device: str | None) -> ComparedPlans:
    """`shapes`: `H100:8,A100-80:8`, or `auto`."""
    workload = read_workload(asked.loaded, asked.epoch_samples)
    if isinstance(workload, UnknownShape):
        raise BadInput(workload.problem, workload.hint)
    # Machines for rent, wherever it is asked.
    asked = replace(asked, place=replace(asked.place, is_here=False))
    numbers = numbers_of_nodes(nodes, asked.run.resources.nodes) if nodes else None
    found = (
        _auto(asked, workload, numbers)
        if shapes == AUTO
        else [
            fleet_plan(asked, workload, fleet)
            for shape in shapes.split(",")
            for fleet in fleets_of(
                asked.run,
                shape_of(shape.strip(), "--compare"),
                numbers or numbers_of_nodes(None, asked.run.resources.nodes),
                device,
            )
        ]
    )
    place = replace(asked.place, fleets=tuple(one.fleet for one in found), words="compared")
    asked = replace(asked, place=place)
    return ComparedPlans(RunPlan(asked, workload, model_section(workload), tuple(found)))


def _auto(asked: Asked, workload: Workload, numbers: Sequence[int] | None) -> list[FleetPlan]:
    """Of each kind those that fit, as far as they have work to do."""
    found: list[FleetPlan] = []
    on_demand = asked.run.resources.on_demand_nodes
    for name in AUTO_DEVICES:
        device = find_device(name)
        assert device is not None
        if workload.precision == "bf16" and device.bf16_flops is None:
            continue
        sizes = AUTO_SIZES if numbers is None else [(8, number) for number in numbers]
        plans = [
            fleet_plan(asked, workload, Fleet(device, number, nodes, on_demand_nodes=on_demand))
            for number, nodes in sizes
            if number * nodes <= workload.global_batch
        ]
        good = [plan for plan in plans if plan.fits.verdict in ("yes", "maybe")]
        found += good if numbers is not None else _two_of(good)
    if not found:
        raise BadInput(
            "no node of the kinds that are compared holds this model",
            "compare others, or more nodes: --compare H200:8 --nodes 16,32,64",
        )
    return found


def _two_of(plans: Sequence[FleetPlan]) -> list[FleetPlan]:
    quick = [one for one in plans if one.seconds is None or one.seconds.value < LONGEST_DAYS * DAY]
    return [*quick[:3:2]] if quick else [*plans[-1:]]


def _least(
    plans: Sequence[FleetPlan], figure: Callable[[FleetPlan], Figure | None]
) -> FleetPlan | None:
    known = [(found.value, at) for at, one in enumerate(plans) if (found := figure(one))]
    return plans[min(known)[1]] if len(known) > 1 else None


def comparison_screen(found: ComparedPlans) -> Iterator[Line]:
    plan = found.plan
    yield [(f"{plan.asked.title}, compared", "bold")]
    yield []
    has_money = any(one.usd for one in plan.fleets)
    header = ("", "GiB of a device", "time", "cost" if has_money else "device hours", "")
    yield [(_row(header), "dim")]
    for one in plan.fleets:
        hours = one.device_hours
        cost = (one.usd and money(one.usd.value)) if has_money else hours and f"{hours:,.0f}"
        time = one.seconds and shown(one.seconds.value, "seconds")
        mark = found.mark(one)
        cells = (str(one.fleet), _memory_words(one), time or "-", cost or "-", mark)
        style: Style = "green" if mark else "dim" if one.fits.verdict == "no" else ""
        yield [(_row(cells), style)]
    if not has_money:
        yield []
        yield [("  No price is known: give yours in a target, prices: {H100: 4}", "dim")]


def _row(cells: Sequence[str]) -> str:
    widths = (*COLUMNS, 0)
    return "  " + "".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))


def _memory_words(one: FleetPlan) -> str:
    if one.fits.verdict == "no" or one.peak is None or one.room is None:
        return "does not fit" if one.fits.verdict == "no" else "-"
    mark = "" if one.fits.verdict == "yes" else " ?"
    return f"{one.peak.value / 2**30:.1f} of {one.room.value / 2**30:.1f}{mark}"
