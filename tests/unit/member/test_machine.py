"""What the machine decides, case by case. Random histories of it all: tests/simulations."""

from __future__ import annotations

import pytest

from headway.member.events import (
    Close,
    Closed,
    Dismissed,
    Goodbye,
    Opened,
    Refused,
    Status,
    StepDown,
    Tell,
)
from headway.member.generation import nobody
from headway.member.machine import Machine
from headway.member.rules import Rules
from support.membership.drive import RULES, Drive, started


def test_the_first_generation_begins_when_all_are_ready() -> None:
    drive = Drive(Machine(RULES, 1, nobody(1), 0.0))
    drive.open("a", "b")
    drive.wait(1)
    assert drive.published == []
    drive.open("c")
    drive.wait(0.1)
    assert drive.pods == ["a", "b", "c"]
    assert drive.current.restores, "nobody has the state yet: it comes from a checkpoint"


def test_it_begins_with_the_minimum_after_a_while() -> None:
    drive = Drive(Machine(RULES, 1, nobody(1), 0.0))
    drive.open("a", "b")
    drive.wait(RULES.gather_seconds + 0.1)
    assert drive.pods == ["a", "b"]


ALONE = Rules(min_domains=1, max_domains=3)
FIRST = Rules(min_domains=1, max_domains=100, first_domains=3)


def test_as_many_as_are_expected_begin_at_once() -> None:
    """There is room for more, who may come later: nobody waits for them."""
    drive = Drive(Machine(FIRST, 1, nobody(1), 0.0))
    drive.open("a", "b")
    drive.wait(FIRST.gather_seconds / 2)
    assert drive.published == [], "one is expected, and its imports take their time"
    drive.open("c")
    drive.wait(0.1)
    assert drive.pods == ["a", "b", "c"]


def test_fewer_than_are_expected_begin_after_a_while() -> None:
    drive = Drive(Machine(FIRST, 1, nobody(1), 0.0))
    drive.open("a")
    drive.wait(FIRST.gather_seconds - 0.1)
    assert drive.published == []
    drive.wait(0.2)
    assert drive.pods == ["a"]


def test_more_than_are_expected_are_all_in() -> None:
    drive = Drive(Machine(FIRST, 1, nobody(1), 0.0))
    drive.open("a", "b", "c", "d")
    drive.wait(0.1)
    assert drive.pods == ["a", "b", "c", "d"]


def test_who_comes_after_the_first_generation_joins_as_always() -> None:
    """However many were expected: that is over."""
    drive = started(FIRST, "a", "b", "c")
    drive.open("d")
    drive.wait(FIRST.join_seconds - 0.1)
    assert drive.pods == ["a", "b", "c"]
    drive.wait(0.2)
    assert drive.pods == ["a", "b", "c", "d"]


def test_the_minimum_is_needed_however_few_are_expected() -> None:
    rules = Rules(min_domains=2, max_domains=3, first_domains=1)
    drive = Drive(Machine(rules, 1, nobody(1), 0.0))
    drive.open("a")
    drive.wait(rules.gather_seconds + 1)
    assert drive.published == []
    drive.open("b")
    drive.wait(0.1)
    assert drive.pods == ["a", "b"]


def test_expected_domains_are_counted_not_their_pods() -> None:
    rules = Rules(max_domains=8, first_domains=2, domain_pods=2, node_pods=2)
    drive = Drive(Machine(rules, 1, nobody(1), 0.0))
    drive.open("a/0", "a/1", "b/0")
    drive.wait(1)
    assert drive.published == []
    drive.open("b/1")
    drive.wait(0.1)
    assert [domain.pods for domain in drive.current.domains] == [("a/0", "a/1"), ("b/0", "b/1")]


def test_generations_go_on_behind_those_of_an_earlier_start() -> None:
    drive = Drive(Machine(FIRST, 3, nobody(3, number=41), 0.0))
    assert drive.pods == []
    drive.open("a", "b", "c")
    drive.wait(0.1)
    assert drive.current.number == 42
    assert drive.current.restores, "whoever had the state has ended"
    drive.settle()
    drive.wait(5)
    assert drive.current.number == 42


def test_a_pod_whose_session_closes_is_out_in_a_quarter_of_a_second() -> None:
    drive = started()
    drive.close("b")
    drive.wait(0.2)
    assert "b" in drive.pods
    drive.wait(0.1)
    assert drive.pods == ["a", "c"]
    assert drive.current.sound == (), "the step cannot be finished without it"
    assert all(domain.holds for domain in drive.current.domains)
    assert "b is lost: its session closed" in drive.current.reason


def test_at_once_if_somebody_complains_too() -> None:
    drive = started()
    drive.close("b")
    drive.tell("a", trouble=drive.current.number)
    drive.wait(0.05)
    assert drive.pods == ["a", "c"]


def test_one_that_connects_again_in_time_stays() -> None:
    drive = started()
    number = drive.current.number
    drive.close("b")
    drive.wait(0.1)
    drive.open("b", seen=number, entered=number, went=number, healed=number)
    drive.wait(3)
    assert drive.pods == ["a", "b", "c"]
    assert drive.current.number == number


def says(drive: Drive, pod: str, what: str) -> None:
    number = drive.current.number
    if what == "complains":
        drive.tell(pod, trouble=number, peers=("b",))
    elif what == "waits":
        drive.tell(pod, waits=number)
    elif what == "waited before":
        drive.tell(pod, waits=number - 1)
    elif what == "waits no longer":
        drive.tell(pod, waits=number)
        drive.tell(pod, waits=0)


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
def test_a_silent_pod_is_out_sooner_if_it_is_missed(what: str, seconds: float) -> None:
    drive = started()
    drive.open("d")
    drive.close("c")
    drive.wait(0.3)  # another generation, so that there is one before
    drive.settle()
    drive.wait(1.1)
    drive.quiet.add("b")
    says(drive, "a", what)
    drive.wait(seconds - 0.5)
    assert "b" in drive.pods
    drive.wait(1)
    assert drive.pods == ["a", "d"]


def test_those_of_one_machine_are_out_soon_after_each_other() -> None:
    """Their last beats lie up to a second apart. Who has not been heard since all were called to
    go on without the first is missed there."""
    drive = started(Rules(max_domains=3))
    drive.quiet.add("b")
    drive.wait(0.9)
    drive.quiet.add("c")
    drive.tell("a", trouble=drive.current.number)
    drive.wait(RULES.suspected_seconds - 0.8)
    assert drive.pods == ["a", "c"]
    drive.wait(1.0)
    assert drive.pods == ["a"]


def test_one_that_waits_changes_nothing_by_itself() -> None:
    drive = started()
    number = drive.current.number
    for pod in ("a", "b"):
        drive.tell(pod, waits=number)
    drive.wait(100)
    assert drive.current.number == number, "c takes its time, and is heard"
    drive.tell("a", trouble=number)
    drive.wait(RULES.trouble_seconds + 0.1)
    assert drive.current.number == number + 1, "the first try: to wait was none"
    assert drive.pods == ["a", "b", "c"]


def test_one_that_waits_leaves_others_the_time_to_connect_again() -> None:
    drive = started()
    drive.tell("a", waits=drive.current.number)
    drive.close("b")
    drive.wait(RULES.reconnect_seconds - 0.05)
    assert drive.pods == ["a", "b", "c"]
    drive.wait(0.1)
    assert drive.pods == ["a", "c"]


def test_who_waited_in_the_generation_before_does_not_wait_in_the_next() -> None:
    drive = started()
    drive.tell("a", waits=drive.current.number)
    drive.close("c")
    drive.wait(0.3)
    assert drive.pods == ["a", "b"]
    drive.wait(0.1)
    drive.quiet.add("b")
    drive.wait(RULES.silence_seconds - 0.5)
    assert drive.pods == ["a", "b"]


def test_who_waits_in_a_generation_that_still_works_waits_while_others_come() -> None:
    drive = started(RULES, "a", "b")
    drive.wait(1.1)
    drive.open("c")
    drive.wait(RULES.join_seconds - 0.2)
    drive.quiet.add("b")
    drive.tell("a", waits=drive.current.number)
    drive.wait(0.3)
    assert drive.pods == ["a", "b", "c"], "a and b are to finish their step first"
    drive.wait(RULES.suspected_seconds)
    assert drive.pods == ["a", "c"]


def test_who_begins_to_wait_in_a_generation_that_still_works_is_heard() -> None:
    drive = started(RULES, "a", "b")
    number = drive.current.number
    drive.open("c")
    drive.wait(RULES.join_seconds + 0.1)
    assert drive.current.sound == (number,)
    drive.quiet.add("b")
    drive.tell("a", seen=number + 1, waits=number)
    drive.wait(RULES.suspected_seconds + 0.1)
    assert drive.pods == ["a", "c"]


def test_one_whose_session_closed_waits_for_nobody() -> None:
    drive = started()
    drive.wait(1.1)
    drive.quiet.add("b")
    drive.wait(RULES.suspected_seconds - 0.1)
    drive.tell("a", waits=drive.current.number)
    drive.close("a")
    drive.wait(0.2)
    assert drive.pods == ["a", "b", "c"]
    drive.open("a", waits=0)
    drive.wait(1)
    assert drive.pods == ["a", "b", "c"]


def test_goodbye_is_believed_at_once() -> None:
    drive = started()
    drive.do(drive.machine.handle(Goodbye("b", drive.sessions.pop("b")), drive.now))
    drive.wait(0.05)
    assert drive.pods == ["a", "c"]


def test_a_planned_leave_lets_the_step_end() -> None:
    drive = started()
    number = drive.current.number
    drive.tell("b", leaving=True)
    drive.wait(0.05)
    assert drive.pods == ["a", "c"]
    assert drive.current.sound == (number,)


def test_the_last_that_has_the_state_stays_until_others_have_it() -> None:
    drive = started(ALONE, "a")
    drive.open("b")
    drive.wait(RULES.join_seconds + 0.1)
    assert [domain.holds for domain in drive.current.domains] == [True, False]
    drive.tell("a", leaving=True)
    drive.wait(5)
    assert drive.pods == ["a", "b"], "b would have to begin from a checkpoint"
    drive.settle()
    drive.wait(0.1)
    assert drive.pods == ["b"]
    assert not drive.current.restores


def test_the_last_that_has_the_state_stays_also_when_another_is_lost() -> None:
    drive = started(ALONE, "a")
    drive.open("b", "c")
    drive.wait(RULES.join_seconds + 0.1)
    drive.tell("a", leaving=True)
    drive.close("b")
    drive.wait(0.3)
    assert drive.pods == ["a", "c"]
    assert not drive.current.restores


def test_when_all_leave_nobody_is_held_back_by_the_others() -> None:
    """They save together, and say goodbye one by one."""
    drive = started()
    for pod in ("a", "b", "c"):
        drive.tell(pod, leaving=True)
    drive.wait(1)
    assert drive.pods == ["a", "b", "c"]
    for pod in ("b", "c"):
        drive.do(drive.machine.handle(Goodbye(pod, drive.sessions.pop(pod)), drive.now))
    drive.wait(0.1)
    assert drive.pods == ["a"]


def test_who_comes_later_is_admitted_at_a_boundary_and_healed() -> None:
    drive = started(RULES, "a", "b")
    number = drive.current.number
    drive.open("c")
    drive.wait(RULES.join_seconds + 0.1)
    assert drive.pods == ["a", "b", "c"]
    assert [domain.holds for domain in drive.current.domains] == [True, True, False]
    assert drive.current.sound == (number,)


def test_one_that_was_not_healed_yet_is_no_healer_in_the_next_generation() -> None:
    drive = started(RULES, "a", "b")
    drive.open("c")
    drive.wait(RULES.join_seconds + 0.1)
    drive.close("b")
    drive.wait(0.3)
    assert {domain.pods[0]: domain.holds for domain in drive.current.domains} == {
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
    assert [domain.pods for domain in drive.current.domains if not domain.holds] == [("b",)]


def test_below_the_minimum_the_run_saves_and_waits() -> None:
    drive = started()
    drive.close("b")
    drive.close("c")
    drive.wait(0.3)
    assert drive.pods == ["a"]
    assert drive.current.paused
    drive.settle()
    drive.open("d")
    drive.wait(RULES.join_seconds + 0.1)
    assert not drive.current.paused


def test_the_last_who_have_the_state_are_waited_for() -> None:
    drive = started()
    for pod in ("a", "b", "c"):
        drive.close(pod)
    drive.wait(RULES.alone_seconds - 1)
    assert drive.pods == ["a", "b", "c"]
    drive.wait(2)
    assert drive.pods == []


def test_a_complaint_with_all_there_makes_a_new_try_and_in_the_end_one_goes() -> None:
    drive = started()
    first = drive.current.number
    for _ in range(RULES.tries):
        drive.tell("a", trouble=drive.current.number, peers=("c",))
        drive.wait(RULES.longest_trouble_seconds + 0.1)
        assert drive.pods == ["a", "b", "c"]
        for pod in drive.pods:
            drive.tell(pod, seen=drive.current.number, entered=drive.current.number)
    assert drive.current.number == first + RULES.tries
    drive.tell("a", trouble=drive.current.number, peers=("c",))
    drive.wait(RULES.longest_trouble_seconds + 0.1)
    assert drive.pods == ["a", "b"]
    drive.settle()
    drive.wait(RULES.barred_seconds - 10)
    assert drive.pods == ["a", "b"], "it is kept out for a while"


def test_one_that_does_not_come_when_called_is_out() -> None:
    drive = started()
    drive.tell("b", step_seconds=1)
    drive.close("c")
    drive.wait(0.3)
    drive.tell("a", seen=drive.current.number, entered=drive.current.number)
    drive.wait(RULES.enter_seconds - 2)
    assert drive.pods == ["a", "b"]
    drive.wait(3)
    assert drive.pods == ["a"]


def test_a_loss_during_a_long_step_costs_nobody_else_their_place() -> None:
    """Two are in a step of 40 s when a third is lost, and cannot leave it early."""
    drive = started()
    for pod in ("a", "b"):
        drive.tell(pod, step_seconds=40)
    drive.close("c")
    drive.wait(0.3)
    drive.tell("a", seen=drive.current.number, entered=drive.current.number)
    drive.wait(41)
    assert drive.pods == ["a", "b"]
    drive.wait(RULES.enter_steps * 40 - 42)
    assert drive.pods == ["a", "b"]
    drive.wait(2)
    assert drive.pods == ["a"], "and does not hold up the others for ever"


def test_a_first_step_may_take_as_long_as_its_watchdog_allows() -> None:
    """It compiles the model."""
    drive = started()
    drive.close("c")
    drive.wait(0.3)
    drive.tell("a", seen=drive.current.number, entered=drive.current.number)
    drive.wait(RULES.first_step_seconds - 1)
    assert drive.pods == ["a", "b"]
    drive.wait(2)
    assert drive.pods == ["a"]


def test_one_rank_of_a_domain_that_has_the_state_is_not_waited_for_as_the_last_that_has_it() -> (
    None
):
    """Its mate has not: the domain holds nothing, and the others need not stand still for it."""
    rules = Rules(min_domains=1, max_domains=2, domain_pods=2)
    drive = Drive(Machine(rules, 1, nobody(1), 0.0))
    drive.open("a", "b", "c", "d")
    drive.wait(0.1)
    for pod in ("a", "b", "c", "d"):
        drive.tell(pod, seen=1, entered=1, waits=0 if pod == "a" else 1)
    drive.tell("a", healed=1)
    drive.quiet.add("a")
    drive.wait(rules.silence_seconds + 0.1)
    assert drive.pods == ["c", "d"]


def test_trouble_is_forgotten_with_those_who_had_it() -> None:
    """Or all who come later would be thrown out for one late heartbeat."""
    drive = started(ALONE, "a")
    drive.tell("a", trouble=1)
    drive.wait(RULES.trouble_seconds + 0.1)
    assert drive.current.number == 2
    drive.now += 0.1
    drive.do(drive.machine.handle(Dismissed("a"), drive.now))
    drive.wait(0.1)
    assert drive.pods == []
    drive.close("a")
    drive.open("b", "c", "d")
    drive.wait(0.1)
    assert drive.pods == ["b", "c", "d"]
    drive.quiet.add("c")
    drive.wait(RULES.suspected_seconds + 0.5)
    assert drive.pods == ["b", "c", "d"]


def test_no_deadline_throws_out_the_last_who_have_the_state() -> None:
    """Only their own watchdogs end those: the run would lose ground with them."""
    drive = started()
    for pod in ("a", "b"):
        drive.tell(pod, step_seconds=1)
    drive.open("d")
    drive.close("c")
    drive.wait(0.3)
    drive.tell("d", seen=drive.current.number, entered=drive.current.number)
    drive.wait(10 * RULES.enter_seconds)
    assert drive.pods == ["a", "b", "d"]
    drive.tell("b", seen=drive.current.number, entered=drive.current.number)
    drive.wait(1)
    assert drive.pods == ["b", "d"], "there is another who has it"


def test_domains_of_two_pods_are_lost_together_and_their_healthy_pods_are_used_again() -> None:
    rules = Rules(min_domains=1, max_domains=2, domain_pods=2)
    drive = started(rules, "a", "b", "c", "d")
    assert [domain.pods for domain in drive.current.domains] == [("a", "b"), ("c", "d")]
    drive.open("e")
    drive.close("a")
    drive.wait(0.3)
    assert [(domain.pods, domain.holds) for domain in drive.current.domains] == [
        (("c", "d"), True),
        (("b", "e"), False),
    ]


def test_the_leader_stays_as_long_as_it_can() -> None:
    drive = started()
    led = drive.current.domains[drive.current.leader].pods
    drive.close(next(pod for pod in drive.pods if pod not in led))
    drive.wait(0.3)
    assert drive.current.domains[drive.current.leader].pods == led
    drive.settle()
    drive.close(led[0])
    drive.wait(0.3)
    assert drive.current.domains[drive.current.leader].holds


def test_after_its_own_pause_it_reads_before_it_judges() -> None:
    drive = started()
    drive.now += 60
    assert drive.machine.look(drive.now) == []
    drive.wait(1)
    assert drive.pods == ["a", "b", "c"]


def test_after_a_restart_members_that_nobody_misses_have_time_to_come_back() -> None:
    """They train, and have not found the new coordinator yet."""
    drive = started()
    again = Drive(Machine(RULES, 2, drive.current, 0.0))
    number = drive.current.number
    again.wait(RULES.absent_seconds / 2)
    again.open("a", "b", seen=number, entered=number, went=number, healed=number)
    again.wait(RULES.absent_seconds / 2 - 1)
    assert again.published == []
    again.wait(2)
    assert again.pods == ["a", "b"]
    assert all(domain.holds for domain in again.current.domains)


def test_the_first_that_comes_back_late_does_not_cost_the_others_their_place() -> None:
    drive = started()
    again = Drive(Machine(RULES, 2, drive.current, 0.0))
    number = drive.current.number
    again.wait(20)
    for pod in ("b", "c", "a"):
        again.open(pod, seen=number, entered=number, went=number, healed=number)
        again.wait(1)
    assert again.published == []


def test_one_that_is_missed_is_left_soon_after_those_who_came_back_late() -> None:
    drive = started()
    again = Drive(Machine(RULES, 2, drive.current, 0.0))
    number = drive.current.number
    again.wait(20)
    again.open("a", seen=number, entered=number, went=number, healed=number, waits=number)
    again.open("b", seen=number, entered=number, went=number, healed=number)
    again.wait(RULES.lull_seconds - 0.1)
    assert again.published == []
    again.wait(0.2)
    assert again.pods == ["a", "b"]


def test_members_that_are_no_more_are_not_waited_for() -> None:
    drive = started()
    for pod in ("a", "b", "c"):
        drive.close(pod)
        drive.machine.handle(Dismissed(pod), drive.now)
    drive.wait(0.3)
    assert drive.pods == []


def test_processes_that_were_started_again_take_the_place_of_those_before_them() -> None:
    """All have crashed at once: nobody is left who has the run's state, and all know it."""
    drive = started(RULES, "n0.1/0.f0", "n1.1/0.f1", "n2.1/0.f2")
    for pod in list(drive.pods):
        drive.close(pod)
    drive.open("n0.2/0.e0", "n1.2/0.e1", "n2.2/0.e2")
    drive.wait(0.3)
    assert drive.pods == ["n0.2/0.e0", "n1.2/0.e1", "n2.2/0.e2"]
    assert not any(domain.holds for domain in drive.current.domains)


def test_a_process_of_before_takes_nobodys_place() -> None:
    drive = started(RULES, "n0.2/0.f0", "n1.1/0.f1", "n2.1/0.f2")
    drive.open("n0.1/0.e0")
    drive.wait(0.3)
    assert "n0.2/0.f0" in drive.pods


def test_one_that_was_lost_with_the_coordinator_is_left_soon_if_it_is_missed() -> None:
    drive = started()
    again = Drive(Machine(RULES, 2, drive.current, 0.0))
    number = drive.current.number
    again.open("a", seen=number, entered=number, went=number, healed=number, trouble=number)
    again.wait(1)
    again.open("b", seen=number, entered=number, went=number, healed=number, waits=number)
    again.wait(RULES.lull_seconds - 0.1)
    assert again.published == []
    again.wait(0.2)
    assert again.pods == ["a", "b"]


def test_those_who_come_back_slowly_because_they_are_many_stay() -> None:
    rules = Rules(min_domains=1, max_domains=8)
    drive = started(rules, *"abcdefgh")
    again = Drive(Machine(rules, 2, drive.current, 0.0))
    number = drive.current.number
    for index, pod in enumerate("abcdefgh"):
        trouble = 0 if index else number
        again.open(pod, seen=number, entered=number, went=number, healed=number, trouble=trouble)
        again.wait((rules.comeback_seconds - 0.5) / 8)
    assert sorted(again.current.pods()) == sorted("abcdefgh")


def test_it_steps_down_when_another_has_written() -> None:
    drive = started()
    (decision,) = drive.machine.handle(Refused(drive.current.number + 1), drive.now)
    assert isinstance(decision, StepDown)
    assert drive.machine.look(drive.now + 10) == []


def test_it_steps_down_when_a_pod_has_seen_more_than_the_record_says() -> None:
    drive = started()
    found = drive.machine.handle(Opened("z", 77, Status(seen=99)), drive.now)
    assert [type(one) for one in found] == [StepDown]


def test_a_newer_session_replaces_the_older_one() -> None:
    drive = started()
    old = drive.sessions["b"]
    drive.open("b")
    assert Close(old, "replaced by a newer session of the same pod") in drive.decided
    drive.do(drive.machine.handle(Closed("b", old), drive.now))
    drive.wait(2)
    assert drive.pods == ["a", "b", "c"]


def test_what_a_pod_has_not_heard_is_said_again() -> None:
    drive = started()
    drive.tell("b", seen=0)
    drive.decided.clear()
    drive.tell("b")
    assert drive.decided == [Tell(drive.sessions["b"])]


@pytest.mark.parametrize("num_pods", [10, 1000])
def test_a_beat_looks_at_no_other_pod(num_pods: int) -> None:
    rules = Rules(min_domains=1, max_domains=num_pods)
    pods = [f"pod-{number}" for number in range(num_pods)]
    drive = started(rules, *pods)

    class Untouchable(dict):  # type: ignore[type-arg]
        def __iter__(self) -> object:
            raise AssertionError("a beat went through all pods")

        values = items = __iter__

    drive.machine.pods = Untouchable(drive.machine.pods)
    drive.tell(pods[0])
    drive.tell(pods[1], peers=("x",))
