"""What a run has cost: seconds of its nodes at their price, by the journal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.clock import stamp
from headway.state.spent_money import BILLED, Bill, NodeRate, Spending, spending_of

START = 1_800_000_000.0
DAY = NodeRate("H100:8", "on_demand", 32.0)
NIGHT = NodeRate("H100:8", "spot", 12.34)
Event = dict[str, Any]


def event(name: str, time: float, **facts: Any) -> Event:
    return {"time": stamp(START + time), "event": name, **facts}


def billed(bill: Bill, budget_usd: float | None = None) -> Event:
    """As it comes out of the journal."""
    noted = event(BILLED, bill.time - START, budget_usd=budget_usd, rates=bill.facts())
    found: Event = json.loads(json.dumps(noted))
    return found


def spent(events: Sequence[Event], now: float | None) -> Spending:
    found = spending_of(events, None if now is None else START + now)
    assert found is not None
    return found


@dataclass(frozen=True)
class Life:
    """Of one node, in seconds after the start."""

    rate: NodeRate
    since: int
    until: int


@st.composite
def lives(draw: st.DrawFn) -> list[Life]:
    found = []
    for _ in range(draw(st.integers(1, 6))):
        since = draw(st.integers(0, 2000))
        until = since + draw(st.integers(0, 2000))
        found.append(Life(draw(st.sampled_from([DAY, NIGHT])), since, until))
    return found


def exact(nodes: Sequence[Life], now: float) -> float:
    """Dollars: the integral over time of the nodes that there are times their price."""
    return sum(
        max(0.0, min(now, node.until) - node.since) * node.rate.usd_per_hour / 3600
        for node in nodes
    )


@settings(deadline=None, max_examples=150)
@given(lives(), st.lists(st.integers(0, 4500), max_size=8), st.integers(1, 60))
def test_the_sum_is_the_integral_of_nodes_times_price(
    nodes: list[Life], restarts: list[int], every: int
) -> None:
    """At every poll of every keeper; keepers come and go. The end of a node is seen at the next
    poll, and one that lived between two polls is not."""
    bill, events, before = Bill(), [], 0.0
    most = sum(every * node.rate.usd_per_hour / 3600 for node in nodes) + 1e-6
    for now in range(0, 4500, every):
        if any(now - every < restart <= now for restart in restarts):
            bill = Bill.noted(events)
        there = [
            (node.rate, START + node.since) for node in nodes if node.since <= now < node.until
        ]
        if bill.count(there, START + now):
            events.append(billed(bill))
        if events:
            usd = spent(events, now).usd
            assert usd == pytest.approx(bill.spending(None).usd, abs=1e-3), "the journal has it"
            assert usd == pytest.approx(exact(nodes, now), abs=most)
            assert usd >= before - 1e-9
            before = usd


def test_a_month_is_no_sum_of_roundings() -> None:
    bill = Bill()
    for now in range(0, 30 * 86400, 7200):
        bill.count([(DAY, START)] * 3, START + now)
        bill = Bill.noted([billed(bill)])
    hours = (30 * 86400 - 7200) / 3600
    assert bill.spending(None).usd == pytest.approx(3 * 32 * hours, abs=0.001)


def test_what_each_second_costs_since_the_newest_bill() -> None:
    bill = Bill()
    bill.count([(DAY, START), (NIGHT, START)], START + 100)
    found = spent([billed(bill, 50.0)], 3600)
    assert found.usd == pytest.approx(32 + 12.34)
    assert (found.budget_usd, found.usd_per_hour) == (50.0, 44.34)
    assert found.counted_until == stamp(START + 3600)
    assert Spending.from_json(json.loads(json.dumps(asdict(found)))) == found


def test_nothing_counts_a_run_without_prices() -> None:
    assert spending_of([event("launched", 0)], START) is None


def test_time_after_the_end_of_a_run_is_not_billed() -> None:
    """It ended without a keeper that would have noted that its nodes are gone."""
    bill = Bill()
    bill.count([(DAY, START)], START + 100)
    events = [event("launched", 0), billed(bill), event("saved", 3600)]
    found = spent(events, None)
    assert (found.usd, found.usd_per_hour) == (pytest.approx(32), 0)


def test_time_between_two_launches_is_not_billed() -> None:
    """The run was deleted with its keeper, and launched again weeks later."""
    bill = Bill()
    bill.count([(DAY, START)], START + 100)
    later = 14 * 86400
    events = [billed(bill), event("saved", 1800), event("launched", later), event("worker", later)]
    assert spent(events, later + 3600).usd == pytest.approx(16)
    again = Bill.noted(events)
    again.count([(DAY, START + later)], START + later + 3600)
    assert again.spending(None).usd == pytest.approx(16 + 32)


def test_a_new_keeper_of_the_same_launch_counts_the_time_without_one() -> None:
    bill = Bill()
    bill.count([(DAY, START)] * 2, START + 100)
    again = Bill.noted([event("launched", 0), billed(bill), event("coordinator_lost", 300)])
    again.count([(DAY, START)], START + 400)
    assert again.spending(None).usd == pytest.approx(2 * 32 * 400 / 3600)


def test_a_machine_whose_label_is_not_known_yet_costs_the_most_until_it_is() -> None:
    bill, dear = Bill(), NodeRate("H100:8", "unknown", 32.0)
    bill.count([(dear, START)], START + 1800)
    assert bill.count([(NIGHT, START)], START + 3600)
    assert bill.spending(None).usd == pytest.approx(32)
    assert bill.spending(None).usd_per_hour == 12.34


def test_another_price_counts_from_the_next_node_on() -> None:
    bill = Bill()
    bill.count([(DAY, START)], START + 3600)
    bill.close(START + 3600)
    bill.count([(NIGHT, START + 3601)], START + 7201)
    found = [(one.capacity, one.nodes, round(one.usd, 2)) for one in bill.spending(None).rates]
    assert found == [("on_demand", 0, 32.0), ("spot", 1, 12.34)]
