"""What a run has cost: the time of its pods at their price, whoever adds it up, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import BadInput
from headway.state.spent_money import (
    GRACE_SECONDS,
    REMEMBERED_SECONDS,
    Account,
    NodeRate,
    PodTime,
    continued_account,
    read_spending,
    save_account,
)
from headway.state.store import Store

START = 1_800_000_000.0
DAY = NodeRate("H100:8", "on_demand", 32.0)
NIGHT = NodeRate("H100:8", "spot", 12.34)


def rate_of(name: str) -> NodeRate:
    return NIGHT if name.endswith("s") else DAY


@dataclass(frozen=True)
class Life:
    """Of one pod, in seconds after the start."""

    name: str
    since: int
    until: int
    removed: int
    """From then on, the API server has forgotten it."""

    def seen(self, now: float) -> PodTime | None:
        if not self.since <= now < self.removed:
            return None
        until = START + self.until if now >= self.until else None
        return PodTime(self.name, START + self.since, until, until is not None)


@st.composite
def lives(draw: st.DrawFn) -> list[Life]:
    found = []
    for number in range(draw(st.integers(1, 6))):
        since = draw(st.integers(0, 2000))
        until = since + draw(st.integers(0, 2000))
        # Kubernetes keeps the object of a pod for a while after its end, or until the Job goes.
        removed = until + draw(st.integers(3, 3000))
        found.append(Life(f"it-{number}-{draw(st.sampled_from('os'))}", since, until, removed))
    return found


def exact(pods: Sequence[Life], now: float) -> float:
    """Dollars: the integral over time of the pods that are there times their price."""
    return sum(
        max(0.0, min(now, pod.until) - pod.since) * rate_of(pod.name).usd_per_hour / 3600
        for pod in pods
    )


def listed(pods: Sequence[Life], now: float) -> list[PodTime]:
    return [seen for pod in pods if (seen := pod.seen(now)) is not None]


@settings(deadline=None, max_examples=150)
@given(lives(), st.lists(st.integers(0, 6500), max_size=8), st.integers(1, 3))
def test_the_sum_is_the_integral_of_pods_times_price(
    pods: list[Life], restarts: list[int], every: int
) -> None:
    """At every look of every keeper; keepers come and go."""
    account, before = Account(keeper=1), 0.0
    ends = {one for pod in pods for one in (pod.until, pod.until + 1)}
    for now in sorted({*range(0, 6500, 97 * every), *ends, 6500}):
        if any(now - 97 * every < restart <= now for restart in restarts):
            account, _ = Account.parse(account.text(None).encode())
        account.look(listed(pods, now), rate_of, "launch", START + now)
        spent = account.spending(None).usd
        assert spent == pytest.approx(exact(pods, now), abs=1e-6)
        assert spent >= before - 1e-9
        before = spent


def test_to_the_cent() -> None:
    """A month of 3 nodes, looked at every 2 seconds, is not a sum of roundings."""
    account = Account(keeper=1)
    for look in range(0, 30 * 86400, 7200):
        pods = [PodTime(f"it-{number}-o", START, None) for number in range(3)]
        account.look(pods, rate_of, "launch", START + look)
        account = Account.parse(account.text(None).encode())[0]
    hours = (30 * 86400 - 7200) / 3600
    assert account.spending(None).usd == pytest.approx(3 * 32 * hours, abs=0.001)


def test_nothing_is_counted_twice_when_a_pod_is_shown_again() -> None:
    account = Account(keeper=1)
    pod = PodTime("it-0-o", START, None)
    account.look([pod], rate_of, "launch", START + 3600)
    account.look([], rate_of, "launch", START + 3602)  # deleted by us, and not yet by the watch
    account.look([pod], rate_of, "launch", START + 3604)
    assert account.spending(None).usd == pytest.approx(32 * 3604 / 3600)
    ended = PodTime("it-0-o", START, START + 3605, has_ended=True)
    for later in (3606, 3610, 3610 + REMEMBERED_SECONDS, 9000.0):
        account.look([ended] if later < 3610 else [], rate_of, "launch", START + later)
        assert account.spending(None).usd == pytest.approx(32 * 3605 / 3600)
    assert account.pods == {}, "the file does not grow"


def test_a_pod_that_vanished_while_no_keeper_looked_counts_until_the_next_look() -> None:
    account = Account(keeper=1)
    account.look([PodTime("it-0-o", START, None)], rate_of, "launch", START + 100)
    account = Account.parse(account.text(None).encode())[0]
    account.look([], rate_of, "launch", START + 400)
    assert account.spending(None).usd == pytest.approx(32 * 400 / 3600)


def test_time_between_two_launches_is_not_billed() -> None:
    """The run was deleted with its keeper: its pods had their grace period, and no weeks."""
    account = Account(keeper=1)
    account.look([PodTime("it-0-o", START, None)], rate_of, "first", START + 100)
    account = Account.parse(account.text(None).encode())[0]
    account.look([], rate_of, "second", START + 14 * 86400)
    assert account.spending(None).usd == pytest.approx(32 * (100 + GRACE_SECONDS) / 3600)


def test_the_end_of_a_pod_that_nobody_noted_is_when_it_was_seen_first() -> None:
    account = Account(keeper=1)
    evicted = PodTime("it-0-o", START, None, has_ended=True)
    for now in (100, 200, 5000):
        account.look([evicted], rate_of, "launch", START + now)
        account = Account.parse(account.text(None).encode())[0]
    assert account.spending(None).usd == pytest.approx(32 * 100 / 3600)


def test_a_pod_whose_price_is_not_known_yet_is_counted_from_its_start_later() -> None:
    account = Account(keeper=1)
    pod = PodTime("it-0-o", START, None)
    account.look([pod], lambda name: None, "launch", START + 1000)
    assert account.spending(None).usd == 0
    account.look([pod], rate_of, "launch", START + 3600)
    assert account.spending(None).usd == pytest.approx(32)


def test_another_price_counts_from_the_next_pod_on() -> None:
    account = Account(keeper=1)
    account.look([PodTime("a", START, START + 3600, True)], lambda _: DAY, "1", START + 3600)
    account.look([PodTime("b", START, START + 3600, True)], lambda _: NIGHT, "2", START + 3600)
    found = account.spending(budget_usd=50.0)
    assert [(one.capacity, one.nodes, round(one.usd, 2)) for one in found.rates] == [
        ("on_demand", 1, 32.0),
        ("spot", 1, 12.34),
    ]
    assert (round(found.usd, 2), found.budget_usd, found.usd_per_hour) == (44.34, 50.0, 0)


def test_of_two_keepers_the_newer_one_counts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old = continued_account(store)
    assert save_account(store, old.keeper, old.text(None))
    new = continued_account(store)
    assert save_account(store, new.keeper, new.text(7.0))
    assert not save_account(store, old.keeper, old.text(None))
    found = read_spending(store)
    assert found is not None
    assert found.budget_usd == 7.0


@pytest.mark.parametrize("content", [b"", b"{}", b'{"version": 2}', b"[]"])
def test_a_damaged_file_is_named_and_not_overwritten(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "spent.json").write_bytes(content)
    assert read_spending(Store(tmp_path)) is None
    with pytest.raises(BadInput, match=r"spent\.json is damaged") as raised:
        continued_account(Store(tmp_path))
    assert raised.value.hint is not None
    assert (tmp_path / "spent.json").read_bytes() == content


def test_a_file_that_is_damaged_during_the_run_is_written_again(tmp_path: Path) -> None:
    account = continued_account(Store(tmp_path))
    (tmp_path / "spent.json").write_bytes(b"x")
    assert save_account(Store(tmp_path), account.keeper, account.text(None))
    assert read_spending(Store(tmp_path)) is not None
