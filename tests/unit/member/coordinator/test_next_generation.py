"""Which generation comes next, case by case."""

from __future__ import annotations

from headway.member.coordinator.decide import Membership
from headway.member.coordinator.events import (
    GoodbyeReceived,
    WorkerDismissed,
)
from headway.member.coordinator.rules import Rules
from headway.member.protocol.generation import nobody
from support.membership.drive import RULES, Drive, started
from support.membership.generations import restores

ALONE = Rules(min_domains=1, max_domains=3)
FIRST = Rules(min_domains=1, max_domains=100, first_domains=3)


def test_the_first_generation_begins_when_all_are_ready() -> None:
    drive = Drive(Membership(RULES, 1, nobody(1), 0.0))
    drive.open("a", "b")
    drive.wait(1)
    assert drive.published == []
    drive.open("c")
    drive.wait(0.1)
    assert drive.workers == ["a", "b", "c"]
    assert restores(drive.current), "nobody has the state yet: it comes from a checkpoint"


def test_it_begins_with_the_minimum_after_a_while() -> None:
    drive = Drive(Membership(RULES, 1, nobody(1), 0.0))
    drive.open("a", "b")
    drive.wait(RULES.gather_seconds + 0.1)
    assert drive.workers == ["a", "b"]


def test_as_many_as_are_expected_begin_at_once() -> None:
    """There is room for more, who may come later: nobody waits for them."""
    drive = Drive(Membership(FIRST, 1, nobody(1), 0.0))
    drive.open("a", "b")
    drive.wait(FIRST.gather_seconds / 2)
    assert drive.published == [], "one is expected, and its imports take their time"
    drive.open("c")
    drive.wait(0.1)
    assert drive.workers == ["a", "b", "c"]


def test_fewer_than_are_expected_begin_after_a_while() -> None:
    drive = Drive(Membership(FIRST, 1, nobody(1), 0.0))
    drive.open("a")
    drive.wait(FIRST.gather_seconds - 0.1)
    assert drive.published == []
    drive.wait(0.2)
    assert drive.workers == ["a"]


def test_more_than_are_expected_are_all_in() -> None:
    drive = Drive(Membership(FIRST, 1, nobody(1), 0.0))
    drive.open("a", "b", "c", "d")
    drive.wait(0.1)
    assert drive.workers == ["a", "b", "c", "d"]


def test_who_comes_after_the_first_generation_joins_as_always() -> None:
    """However many were expected: that is over."""
    drive = started(FIRST, "a", "b", "c")
    drive.open("d")
    drive.wait(FIRST.join_seconds - 0.1)
    assert drive.workers == ["a", "b", "c"]
    drive.wait(0.2)
    assert drive.workers == ["a", "b", "c", "d"]


def test_the_minimum_is_needed_however_few_are_expected() -> None:
    rules = Rules(min_domains=2, max_domains=3, first_domains=1)
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    drive.open("a")
    drive.wait(rules.gather_seconds + 1)
    assert drive.published == []
    drive.open("b")
    drive.wait(0.1)
    assert drive.workers == ["a", "b"]


def test_expected_domains_are_counted_not_their_workers() -> None:
    rules = Rules(max_domains=8, first_domains=2, domain_workers=2, node_workers=2)
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    drive.open("a/0", "a/1", "b/0")
    drive.wait(1)
    assert drive.published == []
    drive.open("b/1")
    drive.wait(0.1)
    assert [domain.workers for domain in drive.current.domains] == [("a/0", "a/1"), ("b/0", "b/1")]


def test_generations_go_on_behind_those_of_an_earlier_start() -> None:
    drive = Drive(Membership(FIRST, 3, nobody(3, number=41), 0.0))
    assert drive.workers == []
    drive.open("a", "b", "c")
    drive.wait(0.1)
    assert drive.current.number == 42
    assert restores(drive.current), "whoever had the state has ended"
    drive.settle()
    drive.wait(5)
    assert drive.current.number == 42


def test_a_planned_leave_lets_the_step_end() -> None:
    drive = started()
    number = drive.current.number
    drive.tell("b", leaving=True)
    drive.wait(0.05)
    assert drive.workers == ["a", "c"]
    assert drive.current.sound == (number,)


def test_the_last_that_has_the_state_stays_until_others_have_it() -> None:
    drive = started(ALONE, "a")
    drive.open("b")
    drive.wait(RULES.join_seconds + 0.1)
    assert [domain.holds for domain in drive.current.domains] == [True, False]
    drive.tell("a", leaving=True)
    drive.wait(5)
    assert drive.workers == ["a", "b"], "b would have to begin from a checkpoint"
    drive.settle()
    drive.wait(0.1)
    assert drive.workers == ["b"]
    assert not restores(drive.current)


def test_the_last_that_has_the_state_stays_also_when_another_is_lost() -> None:
    drive = started(ALONE, "a")
    drive.open("b", "c")
    drive.wait(RULES.join_seconds + 0.1)
    drive.tell("a", leaving=True)
    drive.close("b")
    drive.wait(0.3)
    assert drive.workers == ["a", "c"]
    assert not restores(drive.current)


def test_when_all_leave_nobody_is_held_back_by_the_others() -> None:
    """They save together, and say goodbye one by one."""
    drive = started()
    for worker in ("a", "b", "c"):
        drive.tell(worker, leaving=True)
    drive.wait(1)
    assert drive.workers == ["a", "b", "c"]
    for worker in ("b", "c"):
        drive.do(
            drive.membership.handle(GoodbyeReceived(worker, drive.sessions.pop(worker)), drive.now)
        )
    drive.wait(0.1)
    assert drive.workers == ["a"]


def test_who_comes_later_is_admitted_at_a_boundary_and_healed() -> None:
    drive = started(RULES, "a", "b")
    number = drive.current.number
    drive.open("c")
    drive.wait(RULES.join_seconds + 0.1)
    assert drive.workers == ["a", "b", "c"]
    assert [domain.holds for domain in drive.current.domains] == [True, True, False]
    assert drive.current.sound == (number,)


def test_one_that_was_not_healed_yet_is_no_healer_in_the_next_generation() -> None:
    drive = started(RULES, "a", "b")
    drive.open("c")
    drive.wait(RULES.join_seconds + 0.1)
    drive.close("b")
    drive.wait(0.3)
    assert {domain.workers[0]: domain.holds for domain in drive.current.domains} == {
        "a": True,
        "c": False,
    }


def test_one_that_comes_back_after_it_was_lost_is_healed_like_any_other() -> None:
    drive = started()
    drive.close("b")
    drive.wait(0.3)
    drive.settle()
    drive.open("b")
    drive.wait(RULES.join_seconds + 0.1)
    assert [domain.workers for domain in drive.current.domains if not domain.holds] == [("b",)]


def test_below_the_minimum_the_run_saves_and_waits() -> None:
    drive = started()
    drive.close("b")
    drive.close("c")
    drive.wait(0.3)
    assert drive.workers == ["a"]
    assert drive.current.paused
    drive.settle()
    drive.open("d")
    drive.wait(RULES.join_seconds + 0.1)
    assert not drive.current.paused


def test_a_complaint_with_all_there_makes_a_new_try_and_in_the_end_one_goes() -> None:
    drive = started()
    first = drive.current.number
    for _ in range(RULES.tries):
        drive.tell("a", trouble=drive.current.number, peers=("c",))
        drive.wait(RULES.longest_trouble_seconds + 0.1)
        assert drive.workers == ["a", "b", "c"]
        for worker in drive.workers:
            drive.tell(worker, seen=drive.current.number, entered=drive.current.number)
    assert drive.current.number == first + RULES.tries
    drive.tell("a", trouble=drive.current.number, peers=("c",))
    drive.wait(RULES.longest_trouble_seconds + 0.1)
    assert drive.workers == ["a", "b"]
    drive.settle()
    drive.wait(RULES.barred_seconds - 10)
    assert drive.workers == ["a", "b"], "it is kept out for a while"


def test_failures_are_forgotten_with_the_workers_that_had_them() -> None:
    """Or all who come later would be thrown out for one late heartbeat."""
    drive = started(ALONE, "a")
    drive.tell("a", trouble=1)
    drive.wait(RULES.trouble_seconds + 0.1)
    assert drive.current.number == 2
    drive.now += 0.1
    drive.do(drive.membership.handle(WorkerDismissed("a"), drive.now))
    drive.wait(0.1)
    assert drive.workers == []
    drive.close("a")
    drive.open("b", "c", "d")
    drive.wait(0.1)
    assert drive.workers == ["b", "c", "d"]
    drive.quiet.add("c")
    drive.wait(RULES.suspected_seconds + 0.5)
    assert drive.workers == ["b", "c", "d"]


def test_domains_of_two_workers_are_lost_together_and_their_healthy_workers_are_used_again() -> (
    None
):
    rules = Rules(min_domains=1, max_domains=2, domain_workers=2)
    drive = started(rules, "a", "b", "c", "d")
    assert [domain.workers for domain in drive.current.domains] == [("a", "b"), ("c", "d")]
    drive.open("e")
    drive.close("a")
    drive.wait(0.3)
    assert [(domain.workers, domain.holds) for domain in drive.current.domains] == [
        (("c", "d"), True),
        (("b", "e"), False),
    ]


def test_the_leader_stays_as_long_as_it_can() -> None:
    drive = started()
    led = drive.current.domains[drive.current.leader].workers
    drive.close(next(worker for worker in drive.workers if worker not in led))
    drive.wait(0.3)
    assert drive.current.domains[drive.current.leader].workers == led
    drive.settle()
    drive.close(led[0])
    drive.wait(0.3)
    assert drive.current.domains[drive.current.leader].holds
