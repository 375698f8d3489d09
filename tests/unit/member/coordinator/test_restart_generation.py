"""Workers that end with their generation: when it is over, who is waited for, and who begins the
next."""

from __future__ import annotations

from dataclasses import replace

from headway.member.coordinator.decide import Membership
from headway.member.coordinator.events import GoodbyeReceived, WriteGeneration
from headway.member.coordinator.rules import Rules
from headway.member.protocol.generation import nobody
from support.membership.drive import Drive

RULES = Rules(min_domains=1, max_domains=9, first_domains=3, restarts=True)
NODES = ("n0", "n1", "n2")


def workers(start: int, *nodes: str) -> list[str]:
    return [f"{node}.{start}/0" for node in nodes]


def started() -> Drive:
    drive = Drive(Membership(RULES, 1, nobody(1), 0.0))
    drive.open(*workers(1, *NODES))
    drive.wait(0.1)
    assert drive.workers == workers(1, *NODES)
    drive.settle()
    drive.wait(1)
    return drive


def exit_of(drive: Drive, *names: str) -> None:
    """They end by themselves, as planned."""
    for name in names:
        goodbye = GoodbyeReceived(name, drive.sessions.pop(name))
        drive.do(drive.membership.handle(goodbye, drive.now))


def test_a_loss_ends_the_generation_and_all_meet_again_in_the_next() -> None:
    drive = started()
    number = drive.current.number
    drive.close("n1.1/0")
    drive.wait(0.4)
    assert drive.workers == []
    assert drive.current.breaks(number), "nobody finishes the step"
    assert "n1.1/0 is lost" in drive.current.reason
    drive.close("n0.1/0")
    drive.close("n2.1/0")
    drive.open(*workers(2, "n1", "n2"))
    drive.wait(0.9)
    assert drive.workers == [], "one that was not lost is still missing"
    drive.open(*workers(2, "n0"))
    drive.wait(0.1)
    assert drive.workers == workers(2, *NODES), "at once, and always in the same order"


def test_one_that_is_lost_for_good_is_waited_for_a_moment_only() -> None:
    drive = started()
    drive.close("n1.1/0")
    drive.wait(0.4)
    drive.close("n0.1/0")
    drive.close("n2.1/0")
    drive.open(*workers(2, "n0", "n2"))
    drive.wait(RULES.join_seconds - 0.2)
    assert drive.workers == []
    drive.wait(0.3)
    assert drive.workers == workers(2, "n0", "n2")


def test_pods_of_one_machine_are_lost_together_though_one_was_heard_later() -> None:
    """Its silence is shorter by up to a heartbeat when the first is found to be lost."""
    drive = started()
    drive.quiet.add("n1.1/0")
    drive.wait(0.9)
    drive.quiet.add("n2.1/0")
    drive.wait(RULES.silence_seconds - 0.8)
    assert drive.workers == []
    assert "n1.1/0 is lost" in drive.current.reason
    assert "n2" not in drive.current.reason
    drive.close("n0.1/0")
    drive.open(*workers(2, "n0"))
    drive.wait(RULES.join_seconds + 0.2)
    assert drive.workers == workers(2, "n0"), "nobody waits for a machine that is gone"


def test_one_that_was_silent_for_a_moment_comes_back_with_the_others() -> None:
    drive = started()
    drive.quiet.add("n1.1/0")
    drive.wait(RULES.silence_seconds - 2)
    drive.quiet.add("n2.1/0")
    drive.wait(2.1)
    assert drive.workers == []
    drive.close("n0.1/0")
    drive.close("n2.1/0")
    drive.open(*workers(2, "n0"))
    drive.wait(RULES.join_seconds / 2)
    drive.open(*workers(2, "n2"))
    drive.wait(RULES.join_seconds + 0.2)
    assert drive.workers == workers(2, "n0", "n2")


def test_where_pauses_are_long_one_that_pauses_is_waited_for() -> None:
    """When another is lost it has been silent for less time than it may."""
    drive = started()
    drive.membership.state.lateness.note(3.0, drive.now)
    assert drive.membership.state.silence_limit(drive.now) == 7
    drive.quiet.add("n2.1/0")
    drive.wait(4)
    drive.close("n1.1/0")
    drive.wait(0.4)
    assert drive.workers == []
    drive.close("n0.1/0")
    drive.close("n2.1/0")
    drive.open(*workers(2, "n0"))
    drive.wait(RULES.join_seconds + 0.2)
    assert drive.workers == [], "alone it would have to start again for the other"
    drive.open(*workers(2, "n2"))
    drive.wait(RULES.join_seconds + 0.2)
    assert drive.workers == workers(2, "n0", "n2")


def test_one_that_was_not_lost_is_waited_for_as_in_the_beginning() -> None:
    drive = started()
    drive.close("n1.1/0")
    drive.wait(0.4)
    drive.close("n0.1/0")
    drive.close("n2.1/0")
    drive.open(*workers(2, "n0"))
    drive.wait(RULES.gather_seconds - 0.5)
    assert drive.workers == []
    drive.wait(1)
    assert drive.workers == workers(2, "n0")


def test_a_newcomer_waits_until_the_others_have_finished_their_step_and_saved() -> None:
    drive = started()
    number = drive.current.number
    drive.open("n3.1/0")
    drive.wait(RULES.join_seconds + 0.2)
    assert drive.workers == []
    assert not drive.current.breaks(number), "they finish their step"
    drive.wait(30)
    assert drive.workers == [], "a step may be long"
    exit_of(drive, *workers(1, *NODES))
    drive.open(*workers(2, *NODES))
    drive.wait(0.1)
    assert drive.workers == [*workers(2, *NODES), "n3.1/0"]


def test_one_that_leaves_is_not_waited_for() -> None:
    drive = started()
    number = drive.current.number
    drive.tell("n2.1/0", leaving=True)
    drive.wait(0.1)
    assert drive.workers == []
    assert not drive.current.breaks(number)
    exit_of(drive, *workers(1, *NODES))
    drive.open(*workers(2, "n0", "n1"))
    drive.wait(0.1)
    assert drive.workers == workers(2, "n0", "n1")


def test_if_all_leave_they_save_by_themselves() -> None:
    drive = started()
    for name in workers(1, *NODES):
        drive.tell(name, leaving=True)
    before = len(drive.published)
    drive.wait(1)
    assert len(drive.published) == before


def test_a_loss_before_a_planned_change_is_complete_ends_the_others() -> None:
    """They may wait for it in a collective that nothing else ends."""
    drive = started()
    number = drive.current.number
    drive.tell("n2.1/0", leaving=True)
    drive.wait(0.1)
    drive.close("n1.1/0")
    drive.wait(0.1)
    assert drive.current.breaks(number)
    assert "n1.1/0 is lost" in drive.current.reason


def test_a_worker_of_an_earlier_generation_is_never_a_member_again() -> None:
    """It was suspended, and does not know yet that its generation is over."""
    drive = started()
    drive.close("n1.1/0")
    drive.wait(0.4)
    for name in ("n0.1/0", "n2.1/0"):
        drive.tell(name, step_seconds=2)
    drive.wait(20)
    assert drive.workers == []


def test_below_the_minimum_nothing_is_made() -> None:
    rules = Rules(min_domains=2, max_domains=3, first_domains=2, restarts=True)
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    drive.open(*workers(1, "n0"))
    drive.wait(60)
    assert drive.published == []


def test_after_a_restart_of_the_coordinator_successors_are_not_taken_for_members() -> None:
    drive = started()
    again = Drive(Membership(RULES, 2, drive.current, 0.0))
    again.open(*workers(2, *NODES))
    again.wait(0.2)
    assert again.workers == workers(2, *NODES)


def test_a_run_of_one_member_that_is_silent_is_over_after_its_time() -> None:
    rules = Rules(max_domains=1, first_domains=1, restarts=True, alone_seconds=15)
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    drive.open("n0.1/0")
    drive.wait(0.1)
    drive.settle()
    drive.quiet.add("n0.1/0")
    drive.wait(14)
    assert drive.workers == ["n0.1/0"]
    drive.wait(2)
    assert drive.workers == []


def test_one_that_leaves_while_the_coordinator_is_away_breaks_nothing() -> None:
    """It is the first to reconnect. The others are at work, and save like after any other leave."""
    drive = started()
    number = drive.current.number
    again = Drive(Membership(RULES, 2, drive.current, 0.0), statuses=dict(drive.statuses))
    again.open("n2.1/0", leaving=True)
    again.wait(0.5)
    assert again.workers == workers(1, *NODES)
    again.open("n0.1/0", "n1.1/0")
    again.wait(0.1)
    assert again.workers == []
    assert not again.current.breaks(number)


def test_a_planned_change_waits_until_a_closed_connection_is_judged() -> None:
    drive = started()
    number = drive.current.number
    drive.close("n1.1/0")
    drive.tell("n2.1/0", leaving=True)
    drive.wait(0.5)
    assert drive.current.breaks(number), "it is lost: the others may wait for it"
    assert "n1.1/0 is lost" in drive.current.reason
    drive = started()
    drive.close("n1.1/0")
    drive.tell("n2.1/0", leaving=True)
    drive.wait(0.1)
    drive.open("n1.1/0")
    drive.wait(0.1)
    assert drive.workers == []
    assert not drive.current.breaks(number), "it was back in time"


def test_a_loss_while_a_planned_change_is_recorded_ends_the_others() -> None:
    drive = started()
    number = drive.current.number
    drive.tell("n2.1/0", leaving=True)
    drive.now += 0.1
    decisions = drive.membership.decide(drive.now)
    assert any(isinstance(decision, WriteGeneration) for decision in decisions)
    drive.close("n1.1/0")
    drive.do(decisions)
    drive.wait(0.1)
    assert drive.current.breaks(number)
    assert "n1.1/0 is lost" in drive.current.reason


def test_the_successor_of_one_that_exits_slowly_is_waited_for() -> None:
    """Its tracker takes long to close."""
    drive = started()
    drive.open("n3.1/0")
    drive.wait(RULES.join_seconds + 0.2)
    exit_of(drive, *workers(1, "n1", "n2"))
    drive.open(*workers(2, "n1", "n2"))
    drive.wait(RULES.gather_seconds + 1)
    exit_of(drive, "n0.1/0")
    drive.wait(0.5)
    assert drive.workers == []
    drive.open("n0.2/0")
    drive.wait(0.1)
    assert drive.workers == [*workers(2, *NODES), "n3.1/0"]


def test_newcomers_do_not_start_alone_when_the_coordinator_restarts_in_a_planned_change() -> None:
    rules = Rules(min_domains=1, max_domains=9, first_domains=2, restarts=True)
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    drive.open(*workers(1, "n0", "n1"))
    drive.wait(0.1)
    drive.settle()
    number = drive.current.number
    drive.open(*workers(1, "n2", "n3"))
    drive.wait(rules.join_seconds + 0.2)
    assert drive.current.sound == (number,)
    again = Drive(Membership(rules, 2, drive.current, 0.0), statuses=dict(drive.statuses))
    again.open(*workers(1, "n2", "n3"))
    again.wait(rules.comeback_seconds - 1)
    assert not again.current.breaks(number), "the members have not found the coordinator yet"
    again.open(*workers(1, "n0", "n1"))
    again.wait(20)
    assert not again.current.breaks(number), "they save"
    exit_of(again, *workers(1, "n0", "n1"))
    again.open(*workers(2, "n0", "n1"))
    again.wait(0.1)
    assert again.workers == [*workers(2, "n0", "n1"), *workers(1, "n2", "n3")]


def test_the_order_of_nodes_does_not_depend_on_how_often_each_was_started() -> None:
    rules = Rules(min_domains=1, max_domains=9, first_domains=4, restarts=True)
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    ordered = ["node-0.10/0", "node-1.9/0", "node-2.100/0", "node-10.1/0"]
    drive.open(*reversed(ordered))
    drive.wait(0.1)
    assert drive.workers == ordered


def test_copies_of_the_model_on_two_nodes_each() -> None:
    """A node that is left over waits for another one."""
    rules = Rules(max_domains=4, first_domains=2, domain_workers=2, restarts=True)
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    drive.open(*workers(1, "n3", "n0", "n2", "n1"))
    drive.wait(0.1)
    pairs = [workers(1, "n0", "n1"), workers(1, "n2", "n3")]
    assert [list(domain.workers) for domain in drive.current.domains] == pairs
    drive.settle()
    drive.close("n1.1/0")
    drive.wait(0.4)
    for node in ("n0", "n2", "n3"):
        drive.close(f"{node}.1/0")
    drive.open(*workers(2, "n0", "n2", "n3"))
    drive.wait(RULES.join_seconds + 0.1)
    assert drive.workers == workers(2, "n0", "n2")
    drive.settle()
    drive.open("n1.2/0")
    drive.wait(RULES.join_seconds + 0.2)
    assert drive.workers == [], "all meet again, with the two that waited"


def test_a_node_leaves_as_planned_though_the_only_copy_of_the_model_ends_with_it() -> None:
    rules = Rules(max_domains=4, first_domains=1, domain_workers=2, restarts=True)
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    drive.open(*workers(1, "n0", "n1"))
    drive.wait(0.1)
    drive.settle()
    number = drive.current.number
    drive.tell("n1.1/0", leaving=True)
    drive.wait(0.1)
    assert drive.workers == []
    assert not drive.current.breaks(number), "they save"


def test_nodes_of_a_copy_that_ends_are_waited_for_with_those_that_had_no_place() -> None:
    rules = Rules(max_domains=4, first_domains=2, domain_workers=2, restarts=True)
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    drive.open(*workers(1, "n0", "n1", "n2", "n3"))
    drive.wait(0.1)
    drive.settle()
    drive.open("n4.1/0")
    drive.tell("n3.1/0", leaving=True)
    drive.wait(0.1)
    exit_of(drive, *workers(1, "n0", "n1", "n2", "n3"))
    drive.open(*workers(2, "n0"))
    drive.wait(0.5)
    assert drive.workers == [], "n0 and n4 alone would have to start again for the others"
    drive.open(*workers(2, "n1", "n2"))
    drive.wait(0.1)
    assert drive.workers == [*workers(2, "n0", "n1", "n2"), "n4.1/0"]


def test_a_generation_that_cannot_be_finished_is_ended_once() -> None:
    drive = started()
    drive.tell("n2.1/0", leaving=True)
    drive.wait(0.1)
    drive.close("n1.1/0")
    drive.now += 0.1
    decisions = drive.membership.decide(drive.now)
    drive.close("n0.1/0")  # it has ended with the others before that was recorded
    drive.do(decisions)
    published = len(drive.published)
    drive.wait(0.5)
    assert len(drive.published) == published


def test_a_coordinator_that_restarts_in_a_scale_up_knows_who_is_waited_for() -> None:
    rules = Rules(min_domains=1, max_domains=9, first_domains=2, restarts=True)
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    drive.open(*workers(1, "n0", "n1"))
    drive.wait(0.1)
    drive.settle()
    drive.open(*workers(1, "n2", "n3"))
    drive.wait(rules.join_seconds + 0.2)
    again = Drive(Membership(rules, 2, drive.current, 0.0), statuses=dict(drive.statuses))
    again.open(*workers(1, "n0", "n1", "n2", "n3"))
    again.wait(rules.comeback_seconds + 1)
    exit_of(again, *workers(1, "n0", "n1"))
    again.wait(1)
    assert again.workers == [], "the two that came would have to start again for the others"
    again.open(*workers(2, "n0", "n1"))
    again.wait(0.1)
    assert again.workers == [*workers(2, "n0", "n1"), *workers(1, "n2", "n3")]


def test_a_coordinator_that_restarts_in_a_scale_down_does_not_wait_for_those_that_left() -> None:
    drive = started()
    drive.tell("n2.1/0", leaving=True)
    drive.wait(0.1)
    exit_of(drive, *workers(1, *NODES))
    again = Drive(Membership(RULES, 2, drive.current, 0.0))
    again.open(*workers(2, "n0", "n1"))
    again.wait(RULES.comeback_seconds + 0.1)
    assert again.workers == workers(2, "n0", "n1")


def test_a_coordinator_that_restarts_after_a_loss_waits_for_those_that_were_not_lost() -> None:
    rules = Rules(min_domains=1, max_domains=9, first_domains=1, restarts=True)
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    drive.open("n0.1/0")
    drive.wait(0.1)
    drive.settle()
    drive.open("n1.1/0")
    drive.wait(rules.join_seconds + 0.2)
    exit_of(drive, "n0.1/0")
    drive.open("n0.2/0")
    drive.wait(0.1)
    drive.settle()
    drive.close("n0.2/0")
    drive.wait(0.4)
    again = Drive(Membership(rules, 2, drive.current, 0.0))
    again.open("n0.3/0")
    again.wait(0.5)
    assert again.workers == []
    again.open("n1.2/0")
    again.wait(0.1)
    assert again.workers == ["n0.3/0", "n1.2/0"]


def test_a_new_coordinator_waits_for_those_that_save_though_enough_are_there() -> None:
    rules = Rules(max_domains=4, first_domains=1, domain_workers=2, restarts=True)
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    drive.open(*workers(1, "n0", "n1"))
    drive.wait(0.1)
    drive.settle()
    number = drive.current.number
    drive.open(*workers(1, "n2", "n3"))
    drive.tell("n1.1/0", leaving=True)
    drive.wait(0.1)
    assert drive.current.sound == (number,)
    again = Drive(Membership(rules, 2, drive.current, 0.0))
    again.open(*workers(1, "n2", "n3"))
    again.wait(rules.comeback_seconds - 1)
    assert not again.current.breaks(number), "n0 and n1 have not found the coordinator yet"


def test_those_at_work_are_disturbed_once_for_all_that_come_meanwhile() -> None:
    """Pods come up one by one, and each change costs a script what it has not saved."""
    rules = replace(RULES, newcomer_seconds=20.0)
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    drive.open(*workers(1, *NODES))
    drive.wait(0.1)
    drive.settle()
    drive.open(*workers(1, "n3"))
    drive.wait(10)
    drive.open(*workers(1, "n4"))
    drive.wait(9)
    assert drive.workers == workers(1, *NODES)
    drive.wait(2)
    assert drive.workers == []
    exit_of(drive, *workers(1, *NODES))
    drive.open(*workers(2, *NODES))
    drive.wait(0.1)
    assert drive.workers == [*workers(2, *NODES), *workers(1, "n3", "n4")]
