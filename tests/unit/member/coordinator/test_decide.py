"""What is decided, case by case: sessions, restarts, stepping down. Random histories of it all:
tests/simulations."""

from __future__ import annotations

import pytest

from headway.member.coordinator.decide import Membership
from headway.member.coordinator.events import (
    CloseSession,
    GoodbyeReceived,
    SessionEnded,
    SessionOpened,
    StepDown,
    UpdateSession,
    WorkerDismissed,
    WriteGeneration,
    WriteRefused,
)
from headway.member.coordinator.rules import Rules
from headway.member.protocol.status import WorkerStatus
from support.membership.drive import RULES, Drive, started


def test_after_its_own_pause_it_reads_before_it_judges() -> None:
    drive = started()
    drive.now += 60
    assert drive.membership.decide(drive.now) == []
    drive.wait(1)
    assert drive.workers == ["a", "b", "c"]


def test_after_a_restart_members_that_nobody_misses_have_time_to_come_back() -> None:
    """They train, and have not found the new coordinator yet."""
    drive = started()
    again = Drive(Membership(RULES, 2, drive.current, 0.0))
    number = drive.current.number
    again.wait(RULES.absent_seconds / 2)
    again.open("a", "b", seen=number, entered=number, went=number, healed=number)
    again.wait(RULES.absent_seconds / 2 - 1)
    assert again.published == []
    again.wait(2)
    assert again.workers == ["a", "b"]
    assert all(domain.holds for domain in again.current.domains)


def test_the_first_that_comes_back_late_does_not_cost_the_others_their_place() -> None:
    drive = started()
    again = Drive(Membership(RULES, 2, drive.current, 0.0))
    number = drive.current.number
    again.wait(20)
    for worker in ("b", "c", "a"):
        again.open(worker, seen=number, entered=number, went=number, healed=number)
        again.wait(1)
    assert again.published == []


def test_one_that_is_missed_is_left_soon_after_those_who_came_back_late() -> None:
    drive = started()
    again = Drive(Membership(RULES, 2, drive.current, 0.0))
    number = drive.current.number
    again.wait(20)
    again.open("a", seen=number, entered=number, went=number, healed=number, waits=number)
    again.open("b", seen=number, entered=number, went=number, healed=number)
    again.wait(RULES.lull_seconds - 0.1)
    assert again.published == []
    again.wait(0.2)
    assert again.workers == ["a", "b"]


def test_members_that_are_no_more_are_not_waited_for() -> None:
    drive = started()
    for worker in ("a", "b", "c"):
        drive.close(worker)
        drive.membership.handle(WorkerDismissed(worker), drive.now)
    drive.wait(0.3)
    assert drive.workers == []


def test_processes_that_were_started_again_take_the_place_of_those_before_them() -> None:
    """All have crashed at once: nobody is left who has the run's state, and all know it."""
    drive = started(RULES, "n0.1/0.f0", "n1.1/0.f1", "n2.1/0.f2")
    for worker in list(drive.workers):
        drive.close(worker)
    drive.open("n0.2/0.e0", "n1.2/0.e1", "n2.2/0.e2")
    drive.wait(0.3)
    assert drive.workers == ["n0.2/0.e0", "n1.2/0.e1", "n2.2/0.e2"]
    assert not any(domain.holds for domain in drive.current.domains)


def test_a_process_of_before_takes_nobodys_place() -> None:
    drive = started(RULES, "n0.2/0.f0", "n1.1/0.f1", "n2.1/0.f2")
    drive.open("n0.1/0.e0")
    drive.wait(0.3)
    assert "n0.2/0.f0" in drive.workers


def test_a_loss_with_the_coordinator_is_decided_before_the_others_are_back() -> None:
    """Those who have the state know it themselves: they stay members since the same generation."""
    drive = started(Rules(min_domains=1, max_domains=3), "node-0.1/0", "node-1.1/0", "node-2.1/0")
    assert not any(domain.holds for domain in drive.current.domains)  # in the record
    again = Drive(Membership(drive.membership.state.rules, 2, drive.current, 0.0))
    number = drive.current.number
    again.open("node-0.2/0", seen=0, entered=0, went=0, healed=0)
    again.wait(0.1)
    domains = [(one.workers, one.since, one.holds) for one in again.current.domains]
    assert domains == [
        (("node-1.1/0",), number, False),
        (("node-2.1/0",), number, False),
        (("node-0.2/0",), number + 1, False),
    ]
    assert [one.has_state(number) for one in again.current.domains] == [True, True, False]
    again.open("node-2.1/0", seen=number, entered=number, went=number, healed=number)
    again.membership.handle(WorkerDismissed("node-1.1/0"), again.now)
    again.wait(0.1)
    assert [(one.workers, one.holds) for one in again.current.domains] == [
        (("node-2.1/0",), True),  # it has said so meanwhile
        (("node-0.2/0",), False),
    ]


def test_a_message_that_comes_while_a_generation_is_written_counts_in_it() -> None:
    drive = started(Rules(min_domains=1, max_domains=2), "a", "b")
    drive.close("b")
    drive.open("c")
    drive.wait(0.3)
    number = drive.current.number
    for worker in ("a", "c"):
        drive.tell(worker, seen=number, entered=number)
    drive.membership.handle(GoodbyeReceived("a", drive.sessions["a"]), drive.now)
    [writing] = drive.membership.decide(drive.now)
    assert isinstance(writing, WriteGeneration)
    assert [domain.holds for domain in writing.generation.domains] == [False]
    drive.tell("c", healed=number)
    drive.do([writing])
    assert drive.membership.state.progress.holders() == [("c",)]


def test_when_all_who_had_the_state_are_gone_the_others_do_not_wait_for_ever() -> None:
    rules = Rules(min_domains=1, max_domains=2)
    drive = started(rules, "node-0.1/0", "node-1.1/0")
    again = Drive(Membership(rules, 2, drive.current, 0.0))
    again.open("node-0.2/0", "node-1.2/0", seen=0, entered=0, went=0, healed=0)
    again.wait(1)
    assert again.workers == ["node-0.2/0", "node-1.2/0"]


def test_one_that_was_lost_with_the_coordinator_is_left_soon_if_it_is_missed() -> None:
    drive = started()
    again = Drive(Membership(RULES, 2, drive.current, 0.0))
    number = drive.current.number
    again.open("a", seen=number, entered=number, went=number, healed=number, trouble=number)
    again.wait(1)
    again.open("b", seen=number, entered=number, went=number, healed=number, waits=number)
    again.wait(RULES.lull_seconds - 0.1)
    assert again.published == []
    again.wait(0.2)
    assert again.workers == ["a", "b"]


def test_many_workers_that_reconnect_slowly_stay() -> None:
    rules = Rules(min_domains=1, max_domains=8)
    drive = started(rules, *"abcdefgh")
    again = Drive(Membership(rules, 2, drive.current, 0.0))
    number = drive.current.number
    for index, worker in enumerate("abcdefgh"):
        trouble = 0 if index else number
        again.open(worker, seen=number, entered=number, went=number, healed=number, trouble=trouble)
        again.wait((rules.comeback_seconds - 0.5) / 8)
    assert sorted(again.current.workers()) == sorted("abcdefgh")


def test_it_steps_down_when_another_has_written() -> None:
    drive = started()
    (decision,) = drive.membership.handle(WriteRefused(drive.current.number + 1), drive.now)
    assert isinstance(decision, StepDown)
    assert drive.membership.decide(drive.now + 10) == []


def test_it_steps_down_when_a_worker_has_seen_more_than_the_record_says() -> None:
    drive = started()
    found = drive.membership.handle(SessionOpened("z", 77, WorkerStatus(seen=99)), drive.now)
    assert [type(one) for one in found] == [StepDown]


def test_a_newer_session_replaces_the_older_one() -> None:
    drive = started()
    old = drive.sessions["b"]
    drive.open("b")
    assert CloseSession(old, "replaced by a newer session of the same worker") in drive.decided
    drive.do(drive.membership.handle(SessionEnded("b", old), drive.now))
    drive.wait(2)
    assert drive.workers == ["a", "b", "c"]


def test_what_a_worker_has_not_heard_is_said_again() -> None:
    drive = started()
    drive.tell("b", seen=0)
    drive.decided.clear()
    drive.tell("b")
    assert drive.decided == [UpdateSession(drive.sessions["b"])]


@pytest.mark.parametrize("num_workers", [10, 1000])
def test_a_heartbeat_looks_at_no_other_worker(num_workers: int) -> None:
    rules = Rules(min_domains=1, max_domains=num_workers)
    workers = [f"pod-{number}" for number in range(num_workers)]
    drive = started(rules, *workers)

    class Untouchable(dict):  # type: ignore[type-arg]
        def __iter__(self) -> object:
            raise AssertionError("a heartbeat went through all workers")

        values = items = __iter__

    drive.membership.state.workers = Untouchable(drive.membership.workers)
    drive.tell(workers[0])
    drive.tell(workers[1], peers=("x",))
