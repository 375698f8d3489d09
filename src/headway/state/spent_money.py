"""Money that a run on a target has cost: seconds of its nodes times their price.

The keeper notes an event `billed` in the journal whenever the number of nodes at some price has
changed: how many there are, and how long there were any. So the newest of these events says what
the run had cost by then, and what each second has cost since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from headway.clock import seconds_of, stamp
from headway.spec.price_config import dollars
from headway.state.rewinds import Record

BILLED = "billed"
HOUR = 3600.0

Capacity = Literal["on_demand", "spot", "unknown"]
"""Of a node's machine. `unknown`: it may be a spot machine, and its label could not be read; it
counts as on demand."""


@dataclass(frozen=True)
class NodeRate:
    """What a node costs."""

    node: str
    """Its devices, such as `H100:8`."""
    capacity: Capacity
    usd_per_hour: float


@dataclass
class NodeTime:
    """Time of the nodes at one rate."""

    nodes: int = 0
    """Number of nodes at the moment."""
    seconds: float = 0.0
    """Time of all that there were, added up."""


@dataclass(frozen=True)
class RateTotal:
    """What nodes at one rate have cost."""

    node: str
    capacity: Capacity
    usd_per_hour: float
    nodes: int
    """Number of nodes at the moment."""
    hours: float
    """Of all that there were, added up."""
    usd: float


@dataclass(frozen=True)
class Spending:
    """What a run has cost so far."""

    usd: float
    budget_usd: float | None
    usd_per_hour: float
    """What its nodes cost at the moment; 0 if it has none."""
    counted_until: str
    rates: list[RateTotal]

    @classmethod
    def from_json(cls, known: dict[str, Any]) -> Spending:
        rates = [RateTotal(**rate) for rate in known["rates"]]
        return cls(**{**known, "rates": rates})


@dataclass
class Bill:
    """The nodes of a run, and their time up to a moment."""

    time: float = 0.0
    """That moment, in seconds since 1970; 0: nothing was counted yet."""
    rates: dict[NodeRate, NodeTime] = field(default_factory=dict)

    @classmethod
    def noted(cls, events: Sequence[Record]) -> Bill:
        """Return the newest in the journal. If its nodes were of an earlier launch, they are gone,
        and count until the last event of that launch."""
        at = _newest(events)
        if at is None:
            return cls()
        bill = cls(seconds_of(events[at]["time"]))
        for one in events[at]["rates"]:
            rate = NodeRate(one["node"], one["capacity"], one["usd_per_hour"])
            bill.rates[rate] = NodeTime(one["nodes"], one["seconds"])
        for before, event in zip(events[at:], events[at + 1 :], strict=False):
            if event["event"] == "launched":
                bill.close(seconds_of(before["time"]))
                break
        return bill

    def count(self, nodes: Iterable[tuple[NodeRate, float]], now: float) -> bool:
        """Count the nodes that there were until now, and those that are new from their start on.
        `nodes`: rate and start of each that there is. Return whether others are there than before,
        as far as their numbers and starts tell."""
        counted, before, is_any_new = self.time, self._numbers(), False
        self.pass_time(now)
        for time in self.rates.values():
            time.nodes = 0
        for rate, since in nodes:
            time = self.rates.setdefault(rate, NodeTime())
            time.nodes += 1
            if since > counted:
                time.seconds += max(0.0, now - since)
                is_any_new = True
        return is_any_new or self._numbers() != before

    def pass_time(self, now: float) -> None:
        """The same nodes until now."""
        for time in self.rates.values():
            time.seconds += time.nodes * max(0.0, now - self.time)
        self.time = max(self.time, now)

    def close(self, now: float) -> None:
        """No nodes from now on."""
        self.count((), now)

    def _numbers(self) -> Mapping[NodeRate, int]:
        return {rate: time.nodes for rate, time in self.rates.items() if time.nodes}

    def facts(self) -> list[dict[str, Any]]:
        """Of the event."""
        return [asdict(rate) | asdict(time) for rate, time in self.rates.items()]

    def spending(self, budget_usd: float | None) -> Spending:
        rates = [
            RateTotal(
                **asdict(rate),
                nodes=time.nodes,
                hours=time.seconds / HOUR,
                usd=time.seconds * rate.usd_per_hour / HOUR,
            )
            for rate, time in self.rates.items()
        ]
        return Spending(
            usd=sum(rate.usd for rate in rates),
            budget_usd=budget_usd,
            usd_per_hour=sum(rate.nodes * rate.usd_per_hour for rate in rates),
            counted_until=stamp(self.time),
            rates=rates,
        )


def spending_of(events: Sequence[Record], now: float | None) -> Spending | None:
    """What a run has cost. `now`: None if it is not under way; then it counts until its last event.
    None: nothing counts it."""
    at = _newest(events)
    if at is None:
        return None
    bill = Bill.noted(events)
    if now is None:
        bill.close(seconds_of(events[-1]["time"]))
    else:
        bill.pass_time(now)
    return bill.spending(events[at]["budget_usd"])


def _newest(events: Sequence[Record]) -> int | None:
    """Index of the newest bill."""
    indices = range(len(events) - 1, -1, -1)
    return next((at for at in indices if events[at]["event"] == BILLED), None)


def used_budget(event: Mapping[str, Any]) -> str:
    """Of an event `budget`: `$20.01 of $20.00`."""
    if "spent_usd" in event:
        return f"{dollars(event['spent_usd'])} of {dollars(event['usd'])}"
    return f"{event['spent_hours']:g} of {event['hours']:g} hours"
