"""What a run has cost: the time of its pods at their price, whoever adds it up, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.state.spent_money import (
    GRACE_SECONDS,
    REMEMBERED_SECONDS,
    Account,
    LaterRecord,
    NodeRate,
    OpenedAccount,
    PodTime,
    UnknownBefore,
    continued_account,
    read_spending,
    save_account,
    spending_or_problem,
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


def test_a_pod_whose_capacity_is_not_known_yet_costs_the_most_until_it_is() -> None:
    account = Account(keeper=1)
    pod = PodTime("it-0-s", START, None)
    dear = NodeRate("H100:8", "unknown", 32.0)
    account.look([pod], lambda name: dear, "launch", START + 1800)
    assert account.spending(None).usd == pytest.approx(16), "none is spent unseen"
    account.look([pod], rate_of, "launch", START + 3600)
    assert account.spending(None).usd == pytest.approx(12.34), "from its start on"


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


def opened(store: Store, budget_usd: float | None = None) -> OpenedAccount:
    return continued_account(store, budget_usd, START + 9000)


def save(store: Store, account: Account, budget_usd: float | None = None) -> bool:
    return save_account(store, account.keeper, account.text(budget_usd))


def an_hour(store: Store) -> Account:
    """Is recorded."""
    account = opened(store).account
    account.look([PodTime("it-0-o", START, None)], rate_of, "launch", START + 3600)
    assert save(store, account)
    return account


def test_of_two_keepers_the_newer_one_counts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old = opened(store).account
    assert save(store, old)
    new = opened(store).account
    assert save(store, new, 7.0)
    assert not save(store, old)
    found = read_spending(store)
    assert found is not None
    assert found.budget_usd == 7.0


DAMAGED = [b"", b"{}", b'{"version": 1, "keeper": 1', b"[]", b'{"version": "x"}', b"\xff"]


@pytest.mark.parametrize("content", [None, *DAMAGED])
def test_a_damaged_or_missing_file_is_continued_from_its_copy(
    tmp_path: Path, content: bytes | None
) -> None:
    store = Store(tmp_path)
    before = an_hour(store)
    store.remove("spent.json")
    if content is not None:
        store.write("spent.json", content)
    shown, problem = spending_or_problem(store)
    assert problem is None
    assert shown == before.spending(None), "status reads the copy"
    found = opened(store, 50.0)
    assert found.mended is not None
    assert "its copy of 2027-01-15T09:00:00.000Z continues" in found.mended
    assert found.account.unknown is None
    assert found.account.keeper == before.keeper + 1
    assert found.account.spending(None).usd == pytest.approx(32)
    kept = [path.read_bytes() for path in tmp_path.glob("spent-damaged-*.json")]
    assert kept == ([content] if content is not None else [])
    assert save(store, found.account)
    assert opened(store).mended is None


@pytest.mark.parametrize("content", DAMAGED)
def test_without_a_good_copy_the_sum_begins_anew_and_says_so(
    tmp_path: Path, content: bytes
) -> None:
    store = Store(tmp_path)
    before = an_hour(store)
    store.write("spent.json", content)
    store.write("spent-copy.json", content + b" ")
    assert spending_or_problem(store) == (
        None,
        f"{tmp_path}/spent.json is damaged, and there is no good copy",
    )
    for _ in range(2):  # also if this keeper ends before it has saved
        found = opened(store, 50.0)
        assert found.mended is not None
        assert "what the run had cost is not known; kept as spent-damaged-" in found.mended
        assert {path.read_bytes() for path in tmp_path.glob("spent-damaged-*.json")} == {
            *(content, content + b" ")
        }
    account = found.account
    assert account.unknown == UnknownBefore(START + 9000, 50.0)
    assert save(store, account, 50.0)
    assert not save(store, before), "an older keeper is older still"
    again = opened(store, 60.0)
    assert (again.mended, again.account.unknown) == (None, account.unknown)
    shown = read_spending(store)
    assert shown is not None
    assert (shown.usd, shown.counted_since) == (0.0, "2027-01-15T10:30:00.000Z")


def test_a_record_of_a_later_version_is_left_as_it_is(tmp_path: Path) -> None:
    content = b'{"version": 2, "keeper": 3, "sums": []}'
    (tmp_path / "spent.json").write_bytes(content)
    with pytest.raises(LaterRecord, match=r"spent\.json is of version 2") as raised:
        opened(Store(tmp_path))
    assert raised.value.hint is not None
    spending, problem = spending_or_problem(Store(tmp_path))
    assert spending is None
    assert problem == "spent.json is of version 2, and this Headway reads 1"
    assert [path.name for path in tmp_path.iterdir()] == ["spent.json"]
    assert (tmp_path / "spent.json").read_bytes() == content


def test_a_file_that_is_damaged_during_the_run_is_written_again(tmp_path: Path) -> None:
    account = opened(Store(tmp_path)).account
    (tmp_path / "spent.json").write_bytes(b"x")
    assert save(Store(tmp_path), account)
    assert read_spending(Store(tmp_path)) is not None


class DyingStore(Store):
    """Its process is killed at a write: before it, in the middle, or before the file has its
    name."""

    def __init__(self, folder: Path, writes: int) -> None:
        super().__init__(folder)
        self._left = writes

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        with super().writing(name) as file:
            yield file
            self._left -= 1
            if self._left < 0:
                file.truncate(10)
                raise KeyboardInterrupt


@pytest.mark.parametrize("writes", [0, 1])
def test_a_keeper_that_is_killed_while_it_saves_leaves_a_whole_record(
    tmp_path: Path, writes: int
) -> None:
    account = an_hour(Store(tmp_path))
    account.look([PodTime("it-0-o", START, None)], rate_of, "launch", START + 7200)
    with pytest.raises(KeyboardInterrupt):
        save(DyingStore(tmp_path, writes), account)
    for name in ("spent.json", "spent-copy.json"):
        Account.parse((tmp_path / name).read_bytes())
    found = opened(Store(tmp_path))
    assert found.mended is None
    assert found.account.spending(None).usd == pytest.approx(32 * (1 + writes))
