"""How long a member may be silent: by the size of the group, and by the pauses of its members."""

from __future__ import annotations

import pytest

from headway.member.coordinator.decide import Membership
from headway.member.coordinator.rules import Rules
from headway.member.coordinator.silence import RecentLateness, silence_limit
from headway.member.protocol.generation import nobody
from support.membership.drive import Drive, started

RULES = Rules(max_domains=64)


@pytest.mark.parametrize(
    ("num_members", "late", "seconds"),
    [
        (1, 0.0, 1.5),
        (8, 0.0, 1.5),
        (16, 0.0, 2.0),
        (64, 0.0, 3.0),
        (1024, 0.0, 5.0),
        (5000, 0.0, 6.14),
        (4, 0.2, 1.5),
        (4, 0.4, 1.8),
        (4, 3.0, 7.0),
        (5000, 3.0, 7.0),
        (5000, 9.0, 15.0),
        (10**6, 0.0, 9.97),
    ],
)
def test_the_limit_grows_with_the_group_and_with_its_pauses(
    num_members: int, late: float, seconds: float
) -> None:
    assert silence_limit(RULES, num_members, late) == pytest.approx(seconds, abs=0.01)


def test_a_late_heartbeat_is_remembered_for_half_an_hour_and_forgotten_in_an_hour() -> None:
    lateness = RecentLateness(1800.0, 0.0)
    lateness.note(0.7, 100.0)
    lateness.note(0.3, 200.0)
    assert lateness.longest(1900.0) == 0.7
    lateness.note(0.1, 2000.0)
    assert lateness.longest(3600.0) == 0.7
    assert lateness.longest(3800.0) == 0.1
    assert lateness.longest(20_000.0) == 0.0


def test_one_late_member_makes_all_be_waited_for_twice_as_long() -> None:
    drive = group(4)
    drive.quiet.add("w1")
    drive.wait(1.4)
    drive.quiet.clear()
    drive.wait(0.1)
    assert drive.membership.state.silence_limit(drive.now) == pytest.approx(2.0, abs=0.01)

    drive.quiet.add("w2")
    drive.tell("w3", waits=drive.current.number)
    drive.wait(1.9)
    assert "w2" in drive.workers
    drive.wait(0.2)
    assert "w2" not in drive.workers


def test_one_that_was_lost_by_its_silence_lengthens_nobody_elses() -> None:
    drive = group(4)
    drive.quiet.add("w1")
    drive.tell("w3", waits=drive.current.number)
    drive.wait(4)
    assert "w1" not in drive.workers
    drive.settle()
    drive.quiet.clear()
    drive.wait(5)
    assert "w1" in drive.workers, "it came back"
    assert drive.membership.state.silence_limit(drive.now) == pytest.approx(1.5, abs=0.1)


def test_one_that_is_late_while_it_builds_its_model_lengthens_nobody_elses() -> None:
    """It says nothing of the pauses of members that train."""
    rules = Rules(max_domains=4)
    drive = Drive(Membership(rules, 1, nobody(1), 0.0))
    drive.open(*(f"w{number}" for number in range(4)))
    while not drive.published:
        drive.wait(0.1)
    number = drive.current.number
    for worker in drive.workers:
        drive.tell(worker, seen=number, entered=number, went=number)
    drive.quiet.add("w1")
    drive.wait(3.9)
    drive.quiet.clear()
    drive.wait(0.1)
    for worker in drive.workers:
        drive.tell(worker, healed=number)
    assert drive.membership.established
    assert drive.membership.state.silence_limit(drive.now) == pytest.approx(1.5, abs=0.1)


def test_a_pause_of_the_coordinator_is_nobodys_lateness() -> None:
    drive = group(4)
    drive.now += 8
    drive.wait(2)
    assert len(drive.workers) == 4
    assert drive.membership.state.silence_limit(drive.now) == pytest.approx(1.5, abs=0.1)


def test_when_most_are_silent_at_once_they_are_waited_for() -> None:
    """The network between them and the coordinator has failed, rather than they."""
    drive = group(20)
    silent = [f"w{number}" for number in range(1, 13)]
    drive.quiet.update(silent)
    drive.tell("w19", waits=drive.current.number)
    drive.wait(RULES.longest_silence_seconds - 1)
    assert len(drive.workers) == 20
    drive.quiet.clear()
    drive.wait(20)
    assert len(drive.workers) == 20


def test_most_of_a_group_that_are_really_gone_are_out_in_fifteen_seconds() -> None:
    drive = group(20)
    silent = [f"w{number}" for number in range(1, 13)]
    drive.quiet.update(silent)
    drive.tell("w19", waits=drive.current.number)
    drive.wait(RULES.longest_silence_seconds + 1)
    assert len(drive.workers) == 8


def test_some_of_a_group_are_out_sooner() -> None:
    drive = group(20)
    drive.quiet.update(["w1", "w2", "w3"])
    drive.tell("w19", waits=drive.current.number)
    limit = silence_limit(RULES, 20, 0.0)
    drive.wait(limit - 0.3)
    assert len(drive.workers) == 20
    drive.wait(0.6)
    assert len(drive.workers) == 17


def test_most_of_a_small_group_are_no_sign_of_a_failed_network() -> None:
    """Several may be on one machine."""
    drive = group(3)
    drive.quiet.update(["w1", "w2"])
    drive.tell("w0", waits=drive.current.number)
    drive.wait(1.8)
    assert drive.workers == ["w0"]


def group(num_members: int) -> Drive:
    rules = Rules(max_domains=num_members)
    return started(rules, *(f"w{number}" for number in range(num_members)))
