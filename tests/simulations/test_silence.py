"""Thousands of members on loaded machines: nobody is lost who is only late, and the dead are."""

from __future__ import annotations

import pytest

from headway.member.coordinator.rules import Rules
from support.membership.heartbeat_delays import HeartbeatDelays
from support.membership.many_members import ManyMembers, judged_by_rule

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(600)]

MEMBERS = 5000


def test_at_most_one_wrong_eviction_in_ten_thousand_hours_of_a_member() -> None:
    """`make bench-silence` simulates a hundred times as many."""
    found = judged_by_rule(MEMBERS, hours=2, delays=HeartbeatDelays.load(), seed=1)
    assert found.member_hours == 10_000
    assert found.num_evicted <= 1


def test_the_simulation_finds_a_limit_that_is_too_short() -> None:
    """What was the rule for every size."""
    rules = Rules(small_group=10**9, longest_silence_seconds=Rules.suspected_seconds)
    found = judged_by_rule(MEMBERS, hours=0.2, delays=HeartbeatDelays.load(), seed=1, rules=rules)
    assert found.num_evicted > found.member_hours / 10_000


def test_a_membership_of_thousands_keeps_the_late_and_loses_the_dead() -> None:
    group = ManyMembers(MEMBERS, HeartbeatDelays.load(), seed=1)
    group.play(15)
    assert len(group.members) == MEMBERS
    lost = sorted(group.members)[:3]
    group.dead.update(lost)
    group.play(Rules.longest_silence_seconds + 1)
    assert group.members.isdisjoint(lost)
    assert group.num_evicted == 0
