"""Who is lost, and when, case by case."""

from __future__ import annotations

import pytest

from headway.member.coordinator.decide import Membership
from headway.member.coordinator.events import (
    GoodbyeReceived,
)
from headway.member.coordinator.rules import Rules
from headway.member.protocol.generation import nobody
from support.membership.drive import RULES, Drive, started


def says(drive: Drive, worker: str, what: str) -> None:
    number = drive.current.number
    if what == "complains":
        drive.tell(worker, trouble=number, peers=("b",))
    elif what == "waits":
        drive.tell(worker, waits=number)
    elif what == "waited before":
        drive.tell(worker, waits=number - 1)
    elif what == "waits no longer":
        drive.tell(worker, waits=number)
        drive.tell(worker, waits=0)


def test_a_worker_whose_session_closes_is_out_in_a_quarter_of_a_second() -> None:
    drive = started()
    drive.close("b")
    drive.wait(0.2)
    assert "b" in drive.workers
    drive.wait(0.1)
    assert drive.workers == ["a", "c"]
    assert drive.current.sound == (), "the step cannot be finished without it"
    assert all(domain.holds for domain in drive.current.domains)
    assert "b is lost: its connection closed" in drive.current.reason


def test_at_once_if_somebody_complains_too() -> None:
    drive = started()
    drive.close("b")
    drive.tell("a", trouble=drive.current.number)
    drive.wait(0.05)
    assert drive.workers == ["a", "c"]


def test_one_that_connects_again_in_time_stays() -> None:
    drive = started()
    number = drive.current.number
    drive.close("b")
    drive.wait(0.1)
    drive.open("b", seen=number, entered=number, went=number, healed=number)
    drive.wait(3)
    assert drive.workers == ["a", "b", "c"]
    assert drive.current.number == number


@pytest.mark.parametrize(
    ("what", "seconds"),
    [
        ("nothing", RULES.silence_seconds),
        ("complains", RULES.suspected_seconds),
        ("waits", RULES.suspected_seconds),
        ("waited before", RULES.silence_seconds),
        ("waits no longer", RULES.silence_seconds),
    ],
)
def test_a_silent_worker_is_out_sooner_if_it_is_missed(what: str, seconds: float) -> None:
    drive = started()
    drive.open("d")
    drive.close("c")
    drive.wait(0.3)  # another generation, so that there is one before
    drive.settle()
    drive.wait(1.1)
    drive.quiet.add("b")
    says(drive, "a", what)
    drive.wait(seconds - 0.5)
    assert "b" in drive.workers
    drive.wait(1)
    assert drive.workers == ["a", "d"]


def test_those_of_one_machine_are_out_soon_after_each_other() -> None:
    """Their last heartbeats are up to a second apart. One that was not heard since all were called
    to the generation without the first is missed there."""
    drive = started(Rules(max_domains=3))
    drive.quiet.add("b")
    drive.wait(0.9)
    drive.quiet.add("c")
    drive.tell("a", trouble=drive.current.number)
    drive.wait(RULES.suspected_seconds - 0.8)
    assert drive.workers == ["a", "c"]
    drive.wait(1.0)
    assert drive.workers == ["a"]


def test_one_that_waits_changes_nothing_by_itself() -> None:
    drive = started()
    number = drive.current.number
    for worker in ("a", "b"):
        drive.tell(worker, waits=number)
    drive.wait(100)
    assert drive.current.number == number, "c takes its time, and is heard"
    drive.tell("a", trouble=number)
    drive.wait(RULES.trouble_seconds + 0.1)
    assert drive.current.number == number + 1, "the first try: to wait was none"
    assert drive.workers == ["a", "b", "c"]


def test_one_that_waits_leaves_others_the_time_to_connect_again() -> None:
    drive = started()
    drive.tell("a", waits=drive.current.number)
    drive.close("b")
    drive.wait(RULES.reconnect_seconds - 0.05)
    assert drive.workers == ["a", "b", "c"]
    drive.wait(0.1)
    assert drive.workers == ["a", "c"]


def test_who_waited_in_the_generation_before_does_not_wait_in_the_next() -> None:
    drive = started()
    drive.tell("a", waits=drive.current.number)
    drive.close("c")
    drive.wait(0.3)
    assert drive.workers == ["a", "b"]
    drive.wait(0.1)
    drive.quiet.add("b")
    drive.wait(RULES.silence_seconds - 0.5)
    assert drive.workers == ["a", "b"]


def test_who_waits_in_a_generation_that_still_works_waits_while_others_come() -> None:
    drive = started(RULES, "a", "b")
    drive.wait(1.1)
    drive.open("c")
    drive.wait(RULES.join_seconds - 0.2)
    drive.quiet.add("b")
    drive.tell("a", waits=drive.current.number)
    drive.wait(0.3)
    assert drive.workers == ["a", "b", "c"], "a and b are to finish their step first"
    drive.wait(RULES.suspected_seconds)
    assert drive.workers == ["a", "c"]


def test_who_begins_to_wait_in_a_generation_that_still_works_is_heard() -> None:
    drive = started(RULES, "a", "b")
    number = drive.current.number
    drive.open("c")
    drive.wait(RULES.join_seconds + 0.1)
    assert drive.current.sound == (number,)
    drive.quiet.add("b")
    drive.tell("a", seen=number + 1, waits=number)
    drive.wait(RULES.suspected_seconds + 0.1)
    assert drive.workers == ["a", "c"]


def test_one_whose_session_closed_waits_for_nobody() -> None:
    drive = started()
    drive.wait(1.1)
    drive.quiet.add("b")
    drive.wait(RULES.suspected_seconds - 0.1)
    drive.tell("a", waits=drive.current.number)
    drive.close("a")
    drive.wait(0.2)
    assert drive.workers == ["a", "b", "c"]
    drive.open("a", waits=0)
    drive.wait(1)
    assert drive.workers == ["a", "b", "c"]


def test_goodbye_is_believed_at_once() -> None:
    drive = started()
    drive.do(drive.membership.handle(GoodbyeReceived("b", drive.sessions.pop("b")), drive.now))
    drive.wait(0.05)
    assert drive.workers == ["a", "c"]


def test_the_last_who_have_the_state_are_waited_for() -> None:
    drive = started()
    for worker in ("a", "b", "c"):
        drive.close(worker)
    drive.wait(RULES.alone_seconds - 1)
    assert drive.workers == ["a", "b", "c"]
    drive.wait(2)
    assert drive.workers == []


def test_one_that_does_not_come_when_called_is_out() -> None:
    drive = started()
    drive.tell("b", step_seconds=1)
    drive.close("c")
    drive.wait(0.3)
    drive.tell("a", seen=drive.current.number, entered=drive.current.number)
    drive.wait(RULES.enter_seconds - 2)
    assert drive.workers == ["a", "b"]
    drive.wait(3)
    assert drive.workers == ["a"]


def test_a_loss_during_a_long_step_costs_nobody_else_their_place() -> None:
    """Two are in a step of 40 s when a third is lost, and cannot leave it early."""
    drive = started()
    for worker in ("a", "b"):
        drive.tell(worker, step_seconds=40)
    drive.close("c")
    drive.wait(0.3)
    drive.tell("a", seen=drive.current.number, entered=drive.current.number)
    drive.wait(41)
    assert drive.workers == ["a", "b"]
    drive.wait(RULES.enter_steps * 40 - 42)
    assert drive.workers == ["a", "b"]
    drive.wait(2)
    assert drive.workers == ["a"], "and does not hold up the others for ever"


def test_a_first_step_may_take_as_long_as_its_watchdog_allows() -> None:
    """It compiles the model."""
    drive = started()
    drive.close("c")
    drive.wait(0.3)
    drive.tell("a", seen=drive.current.number, entered=drive.current.number)
    drive.wait(RULES.first_step_seconds - 1)
    assert drive.workers == ["a", "b"]
    drive.wait(2)
    assert drive.workers == ["a"]


def test_one_rank_of_a_domain_that_has_the_state_is_not_waited_for_as_the_last_that_has_it() -> (
    None
):
    """Its mate has not: the domain holds nothing, and the others need not stand still for it."""
    rules = Rules(min_domains=1, max_domains=2, domain_workers=2)
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    drive.open("a", "b", "c", "d")
    drive.wait(0.1)
    for worker in ("a", "b", "c", "d"):
        drive.tell(worker, seen=1, entered=1, waits=0 if worker == "a" else 1)
    drive.tell("a", healed=1)
    drive.quiet.add("a")
    drive.wait(rules.silence_seconds + 0.1)
    assert drive.workers == ["c", "d"]


def test_no_deadline_removes_the_last_workers_with_the_state() -> None:
    """Only their own watchdogs end those: the run would lose ground with them."""
    drive = started()
    for worker in ("a", "b"):
        drive.tell(worker, step_seconds=1)
    drive.open("d")
    drive.close("c")
    drive.wait(0.3)
    drive.tell("d", seen=drive.current.number, entered=drive.current.number)
    drive.wait(10 * RULES.enter_seconds)
    assert drive.workers == ["a", "b", "d"]
    drive.tell("b", seen=drive.current.number, entered=drive.current.number)
    drive.wait(1)
    assert drive.workers == ["b", "d"], "there is another who has it"


def test_the_last_holder_is_not_removed_in_the_moment_the_other_is_lost() -> None:
    """One does not come and the other falls silent, and both times run out at once."""
    drive = started()
    for worker in ("a", "b"):
        drive.tell(worker, step_seconds=1)
    drive.open("d")
    drive.close("c")
    drive.wait(0.3)
    enter_by = drive.membership.workers["a"].enter_by
    for worker in ("b", "d"):
        drive.tell(worker, seen=drive.current.number, entered=drive.current.number)
    drive.wait(enter_by - RULES.silence_seconds - drive.now)
    drive.membership.workers["b"].heard = enter_by - RULES.silence_seconds
    drive.quiet.add("b")
    drive.wait(RULES.silence_seconds + 0.1)
    assert drive.workers == ["a", "d"]
