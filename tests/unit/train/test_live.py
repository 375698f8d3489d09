"""From one generation to the next, over real sessions and groups; the coordinator does as told."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch
from torch.distributed import HashStore

from headway.errors import Exit, PeerLost
from headway.member.protocol.generation import Generation
from headway.member.worker.session import Session
from headway.train import live, restart_place, session_store
from headway.train.collectives import WorkerGroup
from headway.train.domain_group import DomainLost
from headway.train.live import LiveWorlds
from headway.train.stop_request import StopRequest
from headway.train.world import OneWorld, RankPlacement, World
from support.meeting import Meeting
from support.small_coordinator import KEY, RUN
from support.stolen_time import Stopwatch
from support.together import group_of
from support.waiting import wait_for

LONG = 20.0
"""A loaded machine is slow, not wrong: what has to happen is waited for this long."""
SOON = 10.0
"""Tells at once from timeouts of minutes. How soon it is: `make bench-losses`."""


class Member:
    """One worker, in threads of this process."""

    def __init__(self, meeting: Meeting, session: Session, placement: RankPlacement) -> None:
        self.meeting, self.session = meeting, session
        self.stop = StopRequest(is_live=True)
        self.worlds = LiveWorlds(session, placement, self.stop)

    @property
    def name(self) -> str:
        return self.session.name

    @property
    def status(self):  # type: ignore[no-untyped-def]
        """As the coordinator knows it."""
        return self.meeting.status(self.name)

    def next(self, is_wanted: Callable[[], bool] = lambda: True) -> World | None:
        return self.worlds.next(is_wanted)


class Crew:
    """Members that are made as they are asked for, and closed at the end."""

    def __init__(self, stack: ExitStack) -> None:
        self.meeting = stack.enter_context(Meeting())
        self._stack = stack
        self._pool = stack.enter_context(ThreadPoolExecutor(16))
        self._members: list[Member] = []

    def join(
        self,
        name: str,
        kind: type[Session] = Session,
        placement: RankPlacement = RankPlacement(torch.device("cpu")),  # noqa: B008 - it is frozen
    ) -> Member:
        session = self._stack.enter_context(kind(self.meeting.address, KEY, RUN, name))
        member = Member(self.meeting, session, placement)
        self._stack.callback(member.worlds.close, "the test is over")
        session.wait_for("a connection", lambda view: view.connected, LONG)
        return member

    def domain(self, name: str, size: int = 2) -> list[Member]:
        """The ranks of one node, with the groups that last as long as they do."""
        data, control = HashStore(), HashStore()

        def placement(rank: int) -> RankPlacement:
            groups = (group_of(data, rank, size), group_of(control, rank, size))
            return RankPlacement(torch.device("cpu"), rank, size, None, groups)

        places = [self.start(lambda rank=rank: placement(rank)) for rank in range(size)]
        return [
            self.join(f"{name}/{rank}", placement=future.result(LONG))
            for rank, future in enumerate(places)
        ]

    def start(self, call: Callable[[], object]) -> Future:  # type: ignore[type-arg]
        return self._pool.submit(call)

    def next(self, *members: Member) -> list[World]:
        """Of each, when all have one."""
        found = [self.start(member.next) for member in members]
        worlds = [future.result(LONG) for future in found]
        assert all(world is not None for world in worlds)
        return worlds

    def together(self, *names: str) -> tuple[list[Member], list[World]]:
        """In a generation of their own."""
        members = [self.join(name) for name in names]
        self.meeting.gather(*([member.name] for member in members))
        return members, self.next(*members)


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(live, "PLACE_SECONDS", 0.05)
    threads = threading.active_count()
    # A collection over all that a whole test run has made holds up every thread for a third of a
    # second and more, here also the coordinator and all members at once.
    gc.disable()
    try:
        with ExitStack() as stack:
            yield Crew(stack)
    finally:
        gc.enable()
    wait_for("threads to end", lambda: threading.active_count() <= threads, 10.0)


def replicas(world: World) -> WorkerGroup:
    assert world.replicas is not None
    return world.replicas


def total(world: World, number: int) -> int:
    """COLLECTIVE."""
    return int(world.sums(torch.tensor([float(number)], dtype=torch.float64))[0])


# --- who is who


def test_the_leader_has_rank_zero_and_the_others_follow_in_order(crew: Crew) -> None:
    members = [crew.join(name) for name in ("a", "b", "c")]
    number = crew.meeting.gather(*([member.name] for member in members), leader=1)
    worlds = crew.next(*members)
    assert [world.rank for world in worlds] == [1, 0, 2]
    assert [world.is_leader for world in worlds] == [False, True, False]
    assert [(world.num_workers, world.generation) for world in worlds] == [(3, number)] * 3
    assert all(world.domain is None for world in worlds)
    totals = [crew.start(lambda world=world: total(world, 10**world.rank)) for world in worlds]
    assert [future.result(LONG) for future in totals] == [111] * 3
    assert [member.worlds.worker_names for member in members] == [["b", "a", "c"]] * 3


def test_alone_there_is_no_group(crew: Crew) -> None:
    [member], [world] = crew.together("a")
    assert (world.rank, world.num_workers) == (0, 1)
    assert world.replicas is world.domain is None
    assert total(world, 7) == 7
    assert member.status.entered == 1


def test_ranks_of_a_domain_have_a_group_inside_and_one_across_each(crew: Crew) -> None:
    members = [*crew.domain("a"), *crew.domain("b")]
    workers = [member.name for member in members]
    crew.meeting.gather(workers[:2], workers[2:], leader=1)
    worlds = crew.next(*members)
    assert [world.rank for world in worlds] == [2, 3, 0, 1]
    assert [world.writes_checkpoints for world in worlds] == [False, False, True, True]
    assert [world.num_workers for world in worlds] == [4] * 4

    def sums(world: World) -> tuple[int, int, int]:
        inside, across = torch.tensor([10**world.rank]), torch.tensor([10**world.rank])
        assert world.domain is not None
        world.domain.all_reduce(inside)
        replicas(world).all_reduce(across)
        return int(inside.item()), int(across.item()), total(world, 10**world.rank)

    found = [crew.start(lambda world=world: sums(world)).result for world in worlds]
    assert [result(LONG) for result in found] == [
        (1100, 101, 1111),
        (1100, 1010, 1111),
        (11, 101, 1111),
        (11, 1010, 1111),
    ]


def test_what_a_worker_is_told_of_its_world(crew: Crew) -> None:
    one, other = crew.join("node-0.1/0"), crew.join("node-1.1/0")
    reason = f"{other.name} is lost: no heartbeat"
    names = [one.name, other.name]
    crew.meeting.gather(*([name] for name in names), lacking=names, paused=True, reason=reason)
    crew.next(one, other)
    assert (one.worlds.has_state, one.worlds.is_paused) == (False, True)
    assert one.worlds.reason == "node-1.1/0 is lost: no heartbeat"
    one.worlds.report_state()
    wait_for("it", lambda: one.status.healed == 1, LONG)
    crew.meeting.gather([one.name], lacking=[one.name], sound=(1,))
    crew.next(one)
    assert (one.worlds.has_state, one.worlds.is_paused) == (True, False), "it knows by itself"


# --- waiting for a place


def test_one_that_is_not_in_the_run_says_that_it_is_ready_and_waits(crew: Crew) -> None:
    (member,), _ = crew.together("a")
    other = crew.join("b")
    waiting = crew.start(other.next)
    wait_for("it to be ready", lambda: other.status.ready, LONG)
    assert not waiting.done()
    crew.meeting.gather([member.name], [other.name], sound=(1,))
    world, _ = crew.next(member), waiting.result(LONG)
    assert world[0].num_workers == 2


def test_a_removed_worker_asks_again(crew: Crew) -> None:
    (kept, out), _ = crew.together("a", "b")
    crew.meeting.gather([kept.name])
    wait_for("the news", lambda: out.status.seen == 2, LONG)
    assert not out.session.view.status.ready, "it has to say so itself"
    again = crew.start(out.next)
    wait_for("it to be ready", lambda: out.status.ready, LONG)
    crew.meeting.gather([kept.name], [out.name])
    crew.next(kept)
    world = again.result(LONG)
    assert (world.rank, world.generation) == (1, 3)


class LateSession(Session):
    """Hears of another generation between being called and coming."""

    meanwhile: Callable[[], object] | None = None

    def enter(self, number: int | None = None) -> Generation:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            news = meanwhile()
            self.wait_for("it", lambda view: view.generation.number == news, LONG)
        return super().enter(number)


def test_a_worker_removed_while_it_joins_asks_again(crew: Crew) -> None:
    (kept,), _ = crew.together("a")
    late = crew.join("b", kind=LateSession)
    late.session.meanwhile = lambda: crew.meeting.gather([kept.name])  # type: ignore[attr-defined]
    coming = crew.start(late.next)
    crew.meeting.gather([kept.name], [late.name])
    crew.next(kept)
    wait_for("it to be ready", lambda: late.status.seen == 3 and late.status.ready, LONG)
    crew.meeting.gather([kept.name], [late.name])
    crew.next(kept)
    assert coming.result(LONG).generation == 4


def test_one_that_is_not_wanted_any_longer_and_has_no_place_ends(crew: Crew) -> None:
    member = crew.join("a")
    is_wanted = threading.Event()
    is_wanted.set()
    waiting = crew.start(lambda: member.next(is_wanted.is_set))
    wait_for("it to be ready", lambda: member.status.ready, LONG)
    assert not waiting.done()
    is_wanted.clear()
    assert waiting.result(LONG) is None


def test_one_that_leaves_and_has_no_place_ends(crew: Crew) -> None:
    (kept, leaver), _ = crew.together("a", "b")
    leaver.stop.leave_asked = True
    wait_for("it to leave", lambda: leaver.status.leaving, LONG)
    crew.meeting.gather([kept.name], sound=(1,))
    wait_for("the news", lambda: leaver.status.seen == 2, LONG)
    assert leaver.next() is None


def test_whoever_comes_first_waits_for_all_others_and_complains_of_nobody(crew: Crew) -> None:
    """Others finish their step first, and that may take long."""
    one, other = crew.join("a"), crew.join("b")
    crew.meeting.gather([one.name], [other.name])
    first = crew.start(one.next)
    wait_for("the first", lambda: one.status.entered == 1, LONG)
    time.sleep(0.3)  # several times as long as it looks whether it is wanted
    assert not first.done()
    assert one.status.trouble == 0
    crew.next(other)
    assert first.result(LONG).num_workers == 2


@pytest.mark.parametrize("is_called", [False, True])
def test_a_run_that_is_to_stop_and_has_nobody_to_stop_with_is_left(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, is_called: bool
) -> None:
    """The launcher was killed, its coordinator with it, and a peer in the same moment."""
    monkeypatch.setattr(live, "STOP_SECONDS", 0.3)
    (member, _), _ = crew.together("a", "b")
    if is_called:  # to a generation that the others never come to
        crew.meeting.gather([member.name], ["gone"])
    crew.meeting.close()
    member.worlds.end_world(PeerLost("the other was killed"))
    is_wanted = threading.Event()
    is_wanted.set()
    waiting = crew.start(lambda: member.next(is_wanted.is_set))
    time.sleep(0.6)
    assert not waiting.done(), "as long as the run continues, so may its coordinator"
    is_wanted.clear()
    assert waiting.result(LONG) is None


def test_a_newer_generation_while_it_waits_for_the_others(crew: Crew) -> None:
    one, other = crew.join("a"), crew.join("b")
    crew.meeting.gather([one.name], [other.name])
    first = crew.start(one.next)
    wait_for("the first", lambda: one.status.entered == 1, LONG)
    crew.meeting.gather([one.name])
    assert first.result(LONG).generation == 2


# --- leaving


def test_a_worker_whose_machine_is_wanted_back_says_so_soon(crew: Crew) -> None:
    (member, _), _ = crew.together("a", "b")
    assert not member.worlds.is_leaving
    watch, began = Stopwatch(), time.monotonic()
    member.stop.leave_asked = True
    wait_for("it to leave", lambda: member.status.leaving, LONG)
    said = next(
        at
        for at, worker, status in crew.meeting.heartbeats
        if worker == member.name and status.leaving
    )
    assert said - began - watch.lost_seconds < SOON
    assert member.worlds.is_leaving


def test_a_process_that_ends_says_goodbye(crew: Crew) -> None:
    (member, _), _ = crew.together("a", "b")
    member.worlds.close("done")
    assert crew.meeting.goodbyes == ["done"]


class ClosesWhenToldToLeave(Session):
    def leave(self) -> None:
        self.close()
        super().leave()


def test_a_session_that_closes_while_the_thread_speaks_ends_the_thread_in_silence(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[object] = []
    monkeypatch.setattr(threading, "excepthook", said.append)
    member = crew.join("a", kind=ClosesWhenToldToLeave)
    member.stop.leave_asked = True
    wait_for("its end", lambda: not member.worlds._thread.is_alive(), LONG)
    assert said == []


# --- a group that is over


def added_up(world: World) -> tuple[PeerLost | None, float]:
    """What comes of a sum that the others do not take part in, and when."""
    try:
        replicas(world).all_reduce(torch.ones(1))
    except PeerLost as lost:
        return lost, time.monotonic()
    return None, time.monotonic()


def test_what_waits_in_a_broken_generation_fails_at_once(crew: Crew) -> None:
    """Its timeout is ten minutes, and the peer that it waits for is alive and says nothing."""
    (one, two, three), worlds = crew.together("a", "b", "c")
    waiting = [crew.start(lambda world=world: added_up(world)) for world in worlds[:2]]
    time.sleep(0.1)
    assert not any(future.done() for future in waiting)
    worlds[0].require_all_alive()
    watch, began = Stopwatch(), time.monotonic()
    crew.meeting.gather([one.name], [two.name])
    for future in waiting:
        lost, at = future.result(LONG)
        assert lost is not None
        assert at - began - watch.lost_seconds < SOON
    # The other's thread may have been the first to shut the connections.
    wait_for("its own thread", lambda: worlds[0].replicas.is_over, LONG)  # type: ignore[union-attr]
    with pytest.raises(PeerLost, match="the generation is over"):
        worlds[0].require_all_alive()
    assert three.status.trouble == 0
    again = crew.next(one, two)
    totals = [crew.start(lambda world=world: total(world, 1)) for world in again]
    assert [future.result(LONG) for future in totals] == [2, 2]


def test_a_newer_generation_that_breaks_nothing_lets_the_step_end(crew: Crew) -> None:
    (one, two), worlds = crew.together("a", "b")
    newcomer = crew.join("c")
    waiting = crew.start(lambda: total(worlds[0], 1))
    crew.meeting.gather([one.name], [two.name], [newcomer.name], sound=(1,))
    for member in (one, two):
        wait_for("the news", lambda member=member: member.worlds.num_newer_generations == 1, LONG)
    time.sleep(0.25)  # more than two looks of the watching thread
    assert not waiting.done()
    assert total(worlds[1], 1) == 2
    assert waiting.result(LONG) == 2
    assert [world.num_workers for world in crew.next(one, two, newcomer)] == [3, 3, 3]
    assert one.worlds.num_newer_generations == 0


def test_a_lost_peer_is_complained_of_unless_the_answer_is_there(crew: Crew) -> None:
    (one, two), worlds = crew.together("a", "b")
    waiting = crew.start(lambda: added_up(worlds[1]))
    time.sleep(0.05)
    one.worlds.end_world(PeerLost("its own group broke"))
    assert waiting.result(LONG)[0] is not None, "the others hear of it by their sockets"
    wait_for("the complaint", lambda: one.status.trouble == 1, LONG)
    crew.meeting.gather([one.name], [two.name])
    wait_for("the news", lambda: two.status.seen == 2, LONG)
    two.worlds.end_world(PeerLost("the group broke"))
    crew.next(one, two)
    assert all(
        status.trouble == 0 for _, worker, status in crew.meeting.heartbeats if worker == two.name
    )


def test_a_newcomer_that_cannot_be_given_the_state_is_complained_of(crew: Crew) -> None:
    """If that fails each time, those that trained before continue without it."""
    (one, two), _ = crew.together("a", "b")
    for trained in (one, two):
        trained.worlds.report_state()
        wait_for("it", lambda trained=trained: trained.status.healed == 1, LONG)
    newcomer = crew.join("c")
    everyone = [one, two, newcomer]
    for number, has_begun in ((2, False), (3, True)):
        names = [[member.name] for member in everyone]
        crew.meeting.gather(*names, lacking=[newcomer.name], sound=(1,))
        crew.next(*everyone)
        for member in everyone:
            if has_begun:
                member.worlds.report_state()
            member.worlds.end_world(PeerLost("the group broke"))
        wait_for(
            "complaints",
            lambda number=number: [one.status.trouble for one in everyone] == [number] * 3,
            LONG,
        )
        blamed = () if has_begun else (newcomer.name,)
        assert [member.status.peers for member in everyone] == [blamed, blamed, ()]


def test_one_that_does_not_come_to_the_group_is_named(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_store, "FORM_SECONDS", 1.0)
    one, two, silent = crew.join("a"), crew.join("b"), crew.join("c")
    crew.meeting.gather([one.name], [two.name], [silent.name], leader=1)
    found = [crew.start(member.next) for member in (one, two)]
    wait_for("the news", lambda: silent.status.seen == 1, LONG)
    silent.session.enter()
    wait_for("complaints", lambda: one.status.trouble == two.status.trouble == 1, LONG)
    assert one.status.peers == two.status.peers == (silent.name,)
    assert not any(future.done() for future in found)
    crew.meeting.gather([one.name], [two.name])
    assert [future.result(LONG).num_workers for future in found] == [2, 2]
    assert one.status.trouble == 0


def test_a_group_that_did_not_form_is_given_longer_the_next_time(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many on few cores need longer than any time that is fixed beforehand."""
    monkeypatch.setattr(session_store, "FORM_SECONDS", 0.3)
    one, silent = crew.join("a"), crew.join("b")
    found = crew.start(one.next)
    took = []
    for number in (1, 2, 3):
        crew.meeting.gather([one.name], [silent.name])
        wait_for("the news", lambda number=number: silent.status.seen == number, LONG)
        began = time.monotonic()
        silent.session.enter()
        wait_for("a complaint", lambda number=number: one.status.trouble == number, LONG)
        took.append(time.monotonic() - began)
    longest = session_store.form_seconds(2)
    assert took[1] > longest
    assert took[2] > 2 * longest
    crew.meeting.gather([one.name])
    assert found.result(LONG).num_workers == 1


def test_a_newer_generation_while_the_group_forms(crew: Crew) -> None:
    one, two, silent = crew.join("a"), crew.join("b"), crew.join("c")
    crew.meeting.gather([one.name], [two.name], [silent.name])
    found = [crew.start(member.next) for member in (one, two)]
    wait_for("the news", lambda: silent.status.seen == 1, LONG)
    silent.session.enter()
    wait_for("them to form it", lambda: crew.meeting.num_set == 2, LONG)
    watch = Stopwatch()
    crew.meeting.gather([one.name], [two.name])
    assert [future.result(LONG).generation for future in found] == [2, 2]
    assert watch.seconds < session_store.FORM_SECONDS
    assert one.status.trouble == two.status.trouble == 0


# --- the ranks of a domain


def agreed(world: World, lost: PeerLost | None = None) -> str:
    try:
        world.raise_if_any_lost(lost)
    except DomainLost:
        raise
    except PeerLost as error:
        return error.message
    return "all"


def test_a_loss_elsewhere_does_not_keep_the_ranks_of_a_domain_from_agreeing(crew: Crew) -> None:
    """One of them has the result of a step already: the other must get it, too."""
    first, second = crew.domain("a")
    other = crew.domain("b")
    crew.meeting.gather([first.name, second.name], [one.name for one in other])
    world, mate, *_ = crew.next(first, second, *other)
    waiting = crew.start(lambda: agreed(world))
    crew.meeting.gather([first.name, second.name])
    for member in (first, second):
        wait_for("the news", lambda member=member: member.session.view.must_drop, LONG)
    wait_for("the groups between domains to be shut", lambda: replicas(world).is_over, LONG)
    time.sleep(0.2)  # two looks of the watching thread
    assert not waiting.done()
    assert agreed(mate) == "all"
    assert waiting.result(LONG) == "all"
    again = crew.next(first, second)
    assert [one.generation for one in again] == [2, 2]


def test_ranks_of_a_domain_enter_a_generation_together(crew: Crew) -> None:
    first, second = crew.domain("a")
    others = crew.domain("b")
    crew.meeting.gather([first.name, second.name], [one.name for one in others])
    forming = [crew.start(member.next) for member in (first, second, others[0])]
    wait_for("them to enter", lambda: first.status.entered == second.status.entered == 1, LONG)
    assert others[0].status.entered == 0, "it waits for its mate"
    assert not any(future.done() for future in forming)
    crew.meeting.gather([first.name, second.name])
    assert [future.result(LONG).generation for future in forming[:2]] == [2, 2]
    crew.meeting.gather([first.name, second.name], [one.name for one in others])
    found = crew.next(first, second, others[1])
    assert [world.generation for world in found] == [3, 3, 3]
    assert forming[2].result(LONG).generation == 3


def test_one_rank_that_left_a_generation_makes_its_domain_leave(crew: Crew) -> None:
    first, second = crew.domain("a")
    other = crew.domain("b")
    crew.meeting.gather([first.name, second.name], [one.name for one in other])
    world, _, *_ = crew.next(first, second, *other)
    waiting = crew.start(lambda: agreed(world))
    crew.meeting.gather([first.name, second.name])
    leaving = crew.start(second.next)
    assert "has left the generation" in waiting.result(LONG)
    assert crew.next(first)[0].generation == leaving.result(LONG).generation == 2


def test_a_rank_whose_peer_hangs_is_released_when_their_domain_is_removed(crew: Crew) -> None:
    first, second = crew.domain("a")
    (other,) = crew.domain("b", 1)
    crew.meeting.gather([first.name, second.name])
    world, _ = crew.next(first, second)
    waiting = crew.start(lambda: agreed(world))
    crew.meeting.gather([other.name])
    with pytest.raises(DomainLost, match="a rank of this failure domain was lost"):
        waiting.result(LONG)


def test_a_rank_waits_for_its_mate_while_they_leave_as_planned(crew: Crew) -> None:
    """They finish their step, and one of them may be slower at it."""
    first, second = crew.domain("a")
    (other,) = crew.domain("b", 1)
    crew.meeting.gather([first.name, second.name])
    world, mate = crew.next(first, second)
    waiting = crew.start(lambda: agreed(world))
    crew.meeting.gather([other.name], sound=(1,))
    for member in (first, second):
        wait_for("the news", lambda member=member: member.worlds.num_newer_generations == 1, LONG)
    time.sleep(1.2)  # more than twice as long as a given-up collective is waited for
    assert not waiting.done()
    assert agreed(mate) == waiting.result(LONG) == "all"


# --- slow is not silent


def test_a_worker_that_waits_long_says_so_and_takes_it_back(crew: Crew) -> None:
    (one, two), worlds = crew.together("a", "b")
    watch, began = Stopwatch(), time.monotonic()
    waiting = crew.start(lambda: total(worlds[0], 1))
    wait_for("it to be said", lambda: one.status.waits == 1, LONG)
    said = next(
        at for at, worker, status in crew.meeting.heartbeats if worker == one.name and status.waits
    )
    assert said - began > 0.45
    assert said - began - watch.lost_seconds < SOON
    assert two.status.waits == 0
    assert one.status.trouble == 0, "no complaint: a step may be long"
    assert total(worlds[1], 1) == 2
    assert waiting.result(LONG) == 2
    wait_for("it to be taken back", lambda: one.status.waits == 0, LONG)


def test_quick_sums_are_not_worth_a_word(crew: Crew) -> None:
    """Together they take longer than one may."""
    members, worlds = crew.together("a", "b")

    def longest_sum(world: World) -> float:
        longest, began, is_last = 0.0, time.monotonic(), False
        until = began + 2 * live.SLOW_COLLECTIVE_SECONDS
        while not is_last:
            is_last = world.any(time.monotonic() > until)
            longest, began = max(longest, time.monotonic() - began), time.monotonic()
        return longest

    sums = [crew.start(lambda world=world: longest_sum(world)) for world in worlds]
    longest = max(future.result(LONG) for future in sums)
    if longest < live.SLOW_COLLECTIVE_SECONDS / 2:  # else the machine has stalled
        assert not any(status.waits for _, _, status in crew.meeting.heartbeats)
        assert [member.status.waits for member in members] == [0, 0]


def test_training_that_hangs_in_an_all_reduce_is_reported(crew: Crew) -> None:
    (one, two), worlds = crew.together("a", "b")
    waiting = crew.start(lambda: added_up(worlds[0]))
    two.worlds.report_hang(1)
    time.sleep(0.05)
    one.worlds.report_hang(1)
    wait_for("the complaint", lambda: one.status.trouble == 1, LONG)
    assert two.status.trouble == 0, "it does not wait for others, and gets another chance"
    crew.meeting.gather([one.name], [two.name])
    assert waiting.result(LONG)[0] is not None


def test_training_that_hangs_outside_a_collective_ends_its_process(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a sum of a group that is over: the others are gone, and cannot help."""
    ended: list[int] = []
    monkeypatch.setattr(live, "abort", lambda: ended.append(1))
    (one, two), _ = crew.together("a", "b")
    one.worlds.report_hang(1)
    assert not ended, "it gets another chance"
    one.worlds.report_hang(2)
    assert len(ended) == 1
    monitor = two.worlds._monitor
    assert monitor is not None
    monitor.wait_begins()
    two.worlds.report_hang(2)
    assert len(ended) == 1, "it waits for others, and complains"
    monitor.drop()
    two.worlds.report_hang(2)
    assert len(ended) == 2


def test_a_worker_that_cannot_leave_a_group_ends_with_it(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would wait there for minutes, for a peer that has left. All end, as with restart."""
    ended: list[int] = []
    monkeypatch.setattr(restart_place.os, "_exit", ended.append)
    one, two, _ = members = [crew.join(name) for name in "abc"]
    two.worlds.restarts_because = "gloo has changed"
    crew.meeting.gather(*([member.name] for member in members))
    crew.next(*members)
    crew.meeting.gather([one.name], [two.name])
    wait_for("the end of its process", lambda: ended, LONG)
    assert {*ended} == {Exit.GENERATION_OVER}


def test_the_coordinator_knows_how_long_steps_take(crew: Crew) -> None:
    (one, _), _ = crew.together("a", "b")
    assert one.status.step_seconds == 0
    for seconds, said in ((0.2, 1), (0.4, 1), (39.5, 40)):
        one.worlds.report_step_seconds(seconds)
        wait_for("it to be said", lambda said=said: one.status.step_seconds == said, LONG)
    count = len(crew.meeting.heartbeats)
    one.worlds.report_step_seconds(39.7)
    assert len(crew.meeting.heartbeats) <= count + 1, "the same number is not worth a message"


# --- a run that waits


def test_a_paused_run_waits_for_a_change(crew: Crew) -> None:
    member = crew.join("a")
    crew.meeting.gather([member.name], paused=True)
    crew.next(member)
    waiting = crew.start(lambda: member.worlds.wait_for_change(lambda: True))
    time.sleep(0.2)
    assert not waiting.done()
    crew.meeting.gather([member.name])
    waiting.result(LONG)
    is_wanted = threading.Event()
    is_wanted.set()
    crew.next(member)
    stopping = crew.start(lambda: member.worlds.wait_for_change(is_wanted.is_set))
    is_wanted.clear()
    stopping.result(LONG)


def test_one_that_has_saved_and_waits_in_a_paused_run_can_leave(crew: Crew) -> None:
    """It is the last that has the state, so the coordinator keeps it in."""
    member = crew.join("a")
    crew.meeting.gather([member.name], paused=True)
    crew.next(member)
    waiting = crew.start(lambda: member.worlds.wait_for_change(lambda: True))
    member.stop.leave_asked = True
    waiting.result(LONG)
    assert member.next() is None


# --- without a coordinator


def test_one_world_stays_as_it_is_and_is_lost_with_any_of_its_workers() -> None:
    world = World(0, 2, 5, RankPlacement(torch.device("cpu")))
    worlds = OneWorld(world)
    assert worlds.next(lambda: True) is worlds.next(lambda: False) is world
    assert not worlds.has_state
    assert not worlds.is_paused
    assert not worlds.is_leaving
    assert worlds.num_newer_generations == 0
    assert worlds.worker_names == ["worker 0", "worker 1"]
    lost = PeerLost("another worker went away")
    with pytest.raises(PeerLost) as raised:
        worlds.end_world(lost)
    assert raised.value is lost
