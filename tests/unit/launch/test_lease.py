"""Which of a run's coordinators acts: never two at once, and one again soon after the other is
lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.errors import HeadwayError
from headway.kube.api_errors import ClusterUnreachable
from headway.kube.client import KubeClient
from headway.kube.lease_object import FoundLease, KubeLease, NotActing, lease_holder, only_while
from headway.launch import lease as lease_module
from headway.launch.lease import (
    DURATION_SECONDS,
    HELD_SECONDS,
    LOOK_SECONDS,
    RENEW_SECONDS,
    BootClock,
    LeaseKeeper,
)
from support.fake_kube import FakeKube, fake_kube

HISTORIES = 200
HISTORY_SECONDS = 60.0
MOMENT_SECONDS = 0.1
LEASE = "/apis/coordination.k8s.io/v1/namespaces/ml/leases/headway-it-coordinator"


class World:
    """One Lease, and processes that want it: each with a clock of its own rate, and calls that take
    any time, are lost on the way, or arrive when nobody waits for them any more."""

    def __init__(self, seed: int, count: int = 3, rates: tuple[float, float] = (0.9, 1.1)) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.lease = FoundLease("0")
        self.late: list[tuple[float, FoundLease, FoundLease]] = []
        """Writes that are still on their way: when they arrive."""
        self.is_away = False
        self.num_terms = 0
        self.processes = [
            Process(self, f"pod-{index}", self.chance.uniform(*rates)) for index in range(count)
        ]

    def holders(self) -> list[Process]:
        return [one for one in self.processes if one.keeper.is_held()]

    def let_pass(self, seconds: float) -> None:
        """Meanwhile the others have their turns."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + MOMENT_SECONDS)
            holders = self.holders()
            assert len(holders) <= 1, f"{[one.name for one in holders]} act at {self.now:.2f} s"
            for arrival, before, written in [one for one in self.late if one[0] <= self.now]:
                self.late.remove((arrival, before, written))
                self.apply(before, written)
            for process in self.processes:
                process.turn_if_due()

    def apply(self, before: FoundLease, written: FoundLease) -> FoundLease | None:
        if before.version != self.lease.version:
            return None
        self.lease = written
        return written

    def delay(self) -> float:
        return self.chance.choice((*[0.0] * 12, 0.1, 0.5, 1.0, 3.0, 6.0))


class Process:
    """One pod's keeper of the Lease, and its way to the API server."""

    def __init__(self, world: World, name: str, rate: float) -> None:
        self.world = world
        self.name = name
        self.clock = OwnClock(world, rate)
        self.due = world.chance.uniform(0, 5)
        self.is_at_it = False
        self.num_writes = 0
        self.begin()

    def begin(self) -> None:
        self.keeper = LeaseKeeper(self, self.name, self.clock, lambda words: None)

    def turn_if_due(self) -> None:
        if self.is_at_it or self.world.now < self.due:
            return
        if self.keeper.is_over:
            self.world.num_terms += 1
            self.begin()
        self.is_at_it = True
        pause = self.keeper.turn()
        self.is_at_it = False
        chance = self.world.chance
        if chance.random() < 0.01 and self.keeper.is_held():
            self.keeper.release()
        # Its machine may have slept.
        self.due = self.world.now + (chance.uniform(1, 20) if chance.random() < 0.05 else pause)

    def read(self) -> FoundLease:
        self._on_the_way()
        found = self.world.lease
        self.world.let_pass(self.world.delay())
        return found

    def write(
        self, before: FoundLease, holder: str, term: int, launch: str = ""
    ) -> FoundLease | None:
        self.num_writes += 1
        written = FoundLease(f"{self.name}.{self.num_writes}", holder, term, launch)
        world = self.world
        if world.chance.random() < 0.05:
            world.late.append((world.now + 2 * world.delay(), before, written))
            world.let_pass(1.0)
            raise ClusterUnreachable("the API server does not answer")
        self._on_the_way()
        made = world.apply(before, written)
        world.let_pass(world.delay())
        if world.chance.random() < 0.05:
            raise ClusterUnreachable("the API server does not answer")
        return made

    def _on_the_way(self) -> None:
        self.world.let_pass(self.world.delay())
        if self.world.is_away or self.world.chance.random() < 0.05:
            raise ClusterUnreachable("the API server does not answer")


class OwnClock(SystemClock):
    def __init__(self, world: World, rate: float) -> None:
        self._world = world
        self._rate = rate

    def monotonic(self) -> float:
        return self._world.now * self._rate


def test_never_two_at_once() -> None:
    num_terms = 0
    for seed in range(HISTORIES):
        world = World(seed)
        world.let_pass(HISTORY_SECONDS)
        num_terms += world.num_terms
    assert num_terms > HISTORIES, "there was something to be lost"


def test_two_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "HELD_SECONDS", 1.2 * DURATION_SECONDS)

    def find() -> None:
        for seed in range(HISTORIES):
            World(seed).let_pass(HISTORY_SECONDS)

    with pytest.raises(AssertionError, match="act at"):
        find()


class Quiet(World):
    """Nothing is late."""

    def __init__(self, count: int = 2) -> None:
        super().__init__(0, count, (1.0, 1.0))
        for index, process in enumerate(self.processes):
            process.due = 0.2 * index

    def let_pass(self, seconds: float) -> None:
        self.chance = _Never()
        super().let_pass(seconds)

    def delay(self) -> float:
        return 0.0


class _Never(random.Random):
    def random(self) -> float:
        return 1.0


def test_the_other_acts_soon_after_the_first_is_lost() -> None:
    world = Quiet()
    world.let_pass(5)
    first, second = world.processes
    assert world.holders() == [first]
    first.due = float("inf")  # without power
    world.let_pass(DURATION_SECONDS - RENEW_SECONDS - 2 * MOMENT_SECONDS)
    assert world.holders() != [second], "it may still act"
    world.let_pass(RENEW_SECONDS + LOOK_SECONDS + 3 * MOMENT_SECONDS)
    assert world.holders() == [second]
    assert second.keeper.term == first.keeper.term + 1


def test_one_that_gives_it_up_is_followed_at_once() -> None:
    world = Quiet()
    world.let_pass(5)
    first, second = world.processes
    first.keeper.launch = "2026-11-18"
    world.let_pass(2)
    first.keeper.release()
    first.due = float("inf")
    world.let_pass(LOOK_SECONDS + 2 * MOMENT_SECONDS)
    assert world.holders() == [second]
    assert second.keeper.found_launch == "2026-11-18", "it knows whose members come back"


def test_without_the_api_server_nobody_acts() -> None:
    """Its holder cannot know whether it alone is cut off. Whoever comes first acts when it is
    back, and the same process may."""
    world = Quiet()
    world.let_pass(5)
    (holder,) = world.holders()
    lost: list[str] = []
    world.is_away = True
    world.let_pass(HELD_SECONDS - RENEW_SECONDS - 2 * MOMENT_SECONDS)
    assert world.holders() == [holder]
    world.let_pass(RENEW_SECONDS + 3 * MOMENT_SECONDS)
    assert world.holders() == []
    world.is_away = False
    world.let_pass(DURATION_SECONDS + 1)
    assert len(world.holders()) == 1
    assert lost == []


def test_a_term_that_was_interrupted_is_over() -> None:
    """Its coordinator was killed: a renewal that succeeds a moment later does not bring it back."""
    world = Quiet(count=1)
    world.let_pass(1)
    (holder,) = world.holders()
    keeper = holder.keeper
    holder.due = float("inf")
    world.let_pass(HELD_SECONDS + 1)
    assert keeper.is_over
    keeper.turn()
    assert not keeper.is_held()


# The object itself


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with fake_kube(tmp_path) as kube:
        metadata = {"name": "headway-it-coordinator", "namespace": "ml", "labels": {"a": "b"}}
        made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
        kube.put(LEASE, made)
        yield kube


def kube_lease() -> KubeLease:
    client = KubeClient.from_kubeconfig(None, "ml")
    return KubeLease(client, "headway-it-coordinator", SystemClock(), DURATION_SECONDS)


def test_one_of_two_takes_it(kube: FakeKube) -> None:
    lease, other = kube_lease(), kube_lease()
    empty = lease.read()
    assert (empty.holder, empty.term) == ("", 0)
    taken = lease.write(empty, "pod-a_1", 1, "then")
    assert taken is not None
    assert (taken.holder, taken.term, taken.launch) == ("pod-a_1", 1, "then")
    assert other.write(empty, "pod-b_1", 1) is None
    assert other.read() == taken
    assert kube.objects[LEASE]["metadata"]["labels"] == {"a": "b"}
    assert lease_holder(KubeClient.from_kubeconfig(None, "ml"), "it") == "pod-a"
    renewed = lease.write(taken, "pod-a_1", 1, "then")
    assert renewed is not None
    before, after = taken.content["spec"], renewed.content["spec"]
    assert before["acquireTime"] == after["acquireTime"]
    given_up = lease.write(renewed, "", 1, "then")
    assert given_up is not None
    assert given_up.holder == ""


def test_who_acts_is_not_known_without_a_lease(kube: FakeKube) -> None:
    kube.objects.clear()
    assert lease_holder(KubeClient.from_kubeconfig(None, "ml"), "it") == ""


def test_an_answer_of_a_proxy_does_not_end_the_watch_over_the_lease(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    keeper = LeaseKeeper(kube_lease(), "one", BootClock(), said.append)
    answer = kube.answer
    monkeypatch.setattr(kube, "answer", lambda *_: (200, b"<html>try again</html>"))
    assert keeper.turn() == LOOK_SECONDS
    assert "is not JSON" in said[0]
    monkeypatch.setattr(kube, "answer", answer)
    keeper.turn()
    assert keeper.is_held()


def test_calls_of_one_that_does_not_act_are_refused(kube: FakeKube) -> None:
    client, is_acting = KubeClient.from_kubeconfig(None, "ml"), True
    only_while(lambda: is_acting, client)
    kube.job("it")
    assert client.job("headway-it") is not None
    is_acting = False
    for call in (
        lambda: client.job("headway-it"),
        lambda: client.suspend_job("headway-it"),
        lambda: client.call("GET", LEASE),
    ):
        with pytest.raises(NotActing):
            call()
    assert issubclass(NotActing, HeadwayError)
