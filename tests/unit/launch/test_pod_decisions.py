"""When a pod is lost, and where its successor may run. No cluster: names and times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.launch.failure_domains import OUTAGE_SECONDS, SEEN_SECONDS
from headway.launch.pod_decisions import (
    ALONE_SECONDS,
    BLOCKED_SECONDS,
    KEPT,
    LATE_SECONDS,
    LOST_SECONDS,
    START_SECONDS,
    SUSPECT_SECONDS,
    CrashCounter,
    DismissPod,
    Marking,
    PlacePod,
    PodFacts,
    PodTracker,
    ReleasePod,
    RemoveMarker,
    RemovePod,
    ReplacePod,
    Suspect,
    TakeBackPod,
    connected_pods,
    member_pods,
)
from headway.member.coordinator.rules import RESTART_ALONE_SECONDS

A = PodFacts(
    "it-0-aaaaa", 0, "node1", 0.0, False, delete_by=None, has_ended=False, job_uid="the-job"
)
B = replace(A, name="it-1-bbbbb", index=1, machine="node2")
C = replace(A, name="it-2-ccccc", index=2, machine="node3")
ALL = [A, B, C]
NAMES = {pod.name for pod in ALL}
NOBODY: frozenset[str] = frozenset()
"""No pod is a member any more: the coordinator continues without those that are missing."""


@pytest.fixture
def tracker() -> PodTracker:
    """All have been heard of, at time 0."""
    made = PodTracker()
    assert made.look(ALL, NAMES, NOBODY, 0.0) == []
    return made


def marked(pod: PodFacts, now: float) -> ReplacePod:
    """It is replaced, and stays as the marker of its machine."""
    return replaced(pod, Marking("the-job", now + SUSPECT_SECONDS))


def replaced(pod: PodFacts, marking: Marking | None = None) -> ReplacePod:
    assert pod.machine is not None
    return ReplacePod(pod.name, pod.index, pod.machine, marking)


def test_a_pod_without_power_is_replaced_and_stays_to_mark_its_machine(tracker: PodTracker) -> None:
    others, late = NAMES - {B.name}, LOST_SECONDS + 0.1
    assert tracker.look(ALL, others, NOBODY, LOST_SECONDS - 0.1) == []
    assert tracker.look(ALL, others, NOBODY, late) == [marked(B, late)]
    assert tracker.markers == {B.name}


@pytest.fixture
def marking(tracker: PodTracker) -> PodTracker:
    """B is lost, at time LOST_SECONDS, and marks node2."""
    assert tracker.look(ALL, OTHERS, NOBODY, LOST) == [marked(B, LOST)]
    return tracker


OTHERS = NAMES - {B.name}
LOST = LOST_SECONDS + 0.1
OVER = LOST + SUSPECT_SECONDS
NEXT = replace(B, name="it-1-ddddd", machine="node3", created=LOST + 1)
"""The pod that has the index of B after it."""


def test_a_marker_goes_when_the_suspicion_ends(marking: PodTracker) -> None:
    connected = OTHERS | {NEXT.name}
    assert marking.look([A, C, NEXT], connected, NOBODY, OVER - 1) == []
    removed = [RemoveMarker(B.name)]
    assert marking.look([A, C, NEXT], connected, NOBODY, OVER) == removed
    assert marking.look([A, C, NEXT], connected, NOBODY, OVER + 1) == removed, "until it is gone"
    marking.forget_marker(B.name)
    there = replace(B, name="it-3-eeeee", index=3, created=OVER + 1)
    assert marking.look([A, C, NEXT, there], connected, NOBODY, OVER + 2) == []
    assert marking.markers == set()


def test_a_marker_that_blocks_its_replacement_goes_and_its_machine_stays_suspect(
    marking: PodTracker,
) -> None:
    """A quota has no room for both."""
    assert marking.look([A, C], OTHERS, NOBODY, LOST + 1) == []
    assert marking.look([A, C], OTHERS, NOBODY, LOST + BLOCKED_SECONDS) == []
    blocked = LOST + BLOCKED_SECONDS + 1.5
    assert marking.look([A, C], OTHERS, NOBODY, blocked) == [RemoveMarker(B.name)]
    marking.forget_marker(B.name)
    there = replace(NEXT, machine="node2")
    taken = [TakeBackPod(NEXT.name, "node2", None)]
    assert marking.look([A, C, there], OTHERS, NOBODY, blocked + 2) == taken
    assert marking.look([A, C, there], OTHERS, NOBODY, OVER) == [], "the suspicion is over"


def test_a_replacement_that_waits_for_a_machine_is_there(marking: PodTracker) -> None:
    waits = replace(NEXT, machine=None)
    assert marking.look([A, C], OTHERS, NOBODY, LOST + 1) == []
    for time in (2.0, 30.0, 60.0):
        assert marking.look([A, C, waits], OTHERS, NOBODY, LOST + time) == []


def test_a_pod_that_could_not_be_marked_is_marked_later(marking: PodTracker) -> None:
    """The API server was away: it is still a pod of its Job."""
    for time in (1.0, BLOCKED_SECONDS + 1, 30.0):
        assert marking.look(ALL, OTHERS, NOBODY, LOST + time) == []
    late = START_SECONDS + 1
    assert marking.look(ALL, OTHERS, NOBODY, late) == [marked(B, late)]


def test_of_several_pods_lost_on_a_machine_one_marks_it(tracker: PodTracker) -> None:
    beside = replace(C, machine="node2")
    pods = [A, B, beside]
    assert tracker.look(pods, {A.name}, NOBODY, LOST) == [marked(B, LOST), replaced(beside)]


def test_a_pod_scheduled_on_a_suspect_is_taken_back_at_once(marking: PodTracker) -> None:
    """As where the machine has no marker, because somebody deleted it."""
    there = replace(NEXT, machine="node2")
    assert marking.look([A, C, there], OTHERS, NOBODY, LOST + 1.5) == [
        TakeBackPod(NEXT.name, "node2", B.name)
    ]
    connected = OTHERS | {NEXT.name}
    assert marking.look([A, C, there], connected, NOBODY, LOST + 2) == [], "it is up after all"


def test_a_machine_that_is_back_may_have_pods(marking: PodTracker) -> None:
    marking.trust("node2")
    pods = [A, C, replace(NEXT, machine="node2")]
    assert marking.look(pods, OTHERS, NOBODY, LOST + 1.5) == [RemoveMarker(B.name)]
    marking.forget_marker(B.name)
    assert marking.look(pods, OTHERS, NOBODY, LOST + 2) == []


def test_the_next_keeper_finds_markers(marking: PodTracker) -> None:
    marker = replace(B, job_uid=None, suspect_until=OVER)
    pods = [A, C, NEXT]
    keeper = PodTracker()
    keeper.find_markers([marker], pods)
    assert keeper.look(pods, OTHERS | {NEXT.name}, NOBODY, LOST + 10) == []
    there = replace(B, name="it-3-eeeee", index=3)
    assert keeper.look([*pods, there], OTHERS | {NEXT.name}, NOBODY, LOST + 20) == [
        TakeBackPod(there.name, "node2", B.name)
    ]
    assert keeper.look(pods, OTHERS | {NEXT.name}, NOBODY, OVER) == [RemoveMarker(B.name)]


def test_a_worker_that_restarts_in_its_pod_is_not_lost(tracker: PodTracker) -> None:
    assert tracker.look(ALL, NAMES - {B.name}, NOBODY, 2.0) == []
    assert tracker.look(ALL, NAMES, NOBODY, 3.0) == []
    assert tracker.look(ALL, NAMES - {B.name}, NOBODY, 3.0 + LOST_SECONDS - 0.1) == []


def test_when_nobody_is_heard_of_all_are_waited_for_longer(tracker: PodTracker) -> None:
    assert tracker.look(ALL, set(), NOBODY, ALONE_SECONDS - 0.1) == []
    lost = tracker.look(ALL, set(), NOBODY, ALONE_SECONDS + 0.1)
    assert lost == [marked(pod, ALONE_SECONDS + 0.1) for pod in ALL]


def test_where_workers_restart_together_the_only_machine_is_replaced_sooner() -> None:
    tracker = PodTracker(alone_seconds=RESTART_ALONE_SECONDS)
    tracker.look([A], {A.name}, {A.name}, 0.0)
    assert tracker.look([A], set(), {A.name}, RESTART_ALONE_SECONDS + 5) == [], "still a member"
    late = RESTART_ALONE_SECONDS + 5
    assert tracker.look([A], set(), NOBODY, late) == [marked(A, late)]


def test_a_pod_never_heard_from_is_still_starting(tracker: PodTracker) -> None:
    new = replace(B, name="it-3-eeeee", index=3, machine="node1", created=100.0)
    assert tracker.look([*ALL, new], NAMES, NOBODY, 1000.0) == []


def test_unless_its_machine_has_lost_another(tracker: PodTracker) -> None:
    new = replace(B, name="it-3-eeeee", index=3, created=0.0)
    tracker.look([*ALL, new], NAMES - {B.name}, NOBODY, LOST_SECONDS + 0.1)
    left = [A, C, new]
    others = NAMES - {B.name}
    assert tracker.look(left, others, NOBODY, START_SECONDS - 1) == []
    assert tracker.look(left, others, NOBODY, START_SECONDS + 1) == [replaced(new)]


def test_one_that_leaves_has_its_grace(tracker: PodTracker) -> None:
    leaving = replace(B, delete_by=120.0)
    others = NAMES - {B.name}
    assert tracker.look([A, leaving, C], others, NOBODY, 119.0) == []
    late = 120.0 + LATE_SECONDS + 1
    assert tracker.look([A, leaving, C], others, NOBODY, late) == [replaced(leaving)]


def test_but_not_on_a_machine_without_power(tracker: PodTracker) -> None:
    """Kubernetes deletes the pods of a lost machine, and no kubelet is left to end them."""
    tracker.suspects["node2"] = Suspect(until=1000.0)
    leaving = replace(B, delete_by=120.0)
    others = NAMES - {B.name}
    assert tracker.look([A, leaving, C], others, NOBODY, 1.0) == [replaced(leaving)]


def test_one_that_has_ended_is_for_kubernetes_to_replace(tracker: PodTracker) -> None:
    ended = replace(B, has_ended=True)
    assert tracker.look([A, ended, C], NAMES - {B.name}, NOBODY, 1000.0) == []


def test_a_member_is_not_lost_before_the_coordinator_continues_without_it() -> None:
    """After a restart of the coordinator they continue to train, and find it at different times."""
    tracker = PodTracker()
    others = NAMES - {B.name}
    assert tracker.look(ALL, set(), NAMES, 0.0) == []
    assert tracker.look(ALL, set(), NAMES, 15.0) == []
    assert tracker.look(ALL, others, NAMES, 16.0) == []
    assert tracker.look(ALL, others, others, 17.0) == [marked(B, 17.0)]


def test_unless_kubernetes_does_not_hear_of_its_machine_either(tracker: PodTracker) -> None:
    told = replace(B, delete_by=180.0)
    assert tracker.look([A, told, C], set(), NAMES, 60.0) == []
    unheard = replace(told, is_cut_off=True)
    assert tracker.look([A, unheard, C], set(), NAMES, 61.0) == [replaced(unheard)]
    assert tracker.look([A, unheard, C], NAMES, NAMES, 62.0) == []


def test_what_is_gone_is_forgotten(tracker: PodTracker) -> None:
    tracker.look([A], {A.name}, NOBODY, 1.0)
    assert set(tracker.heard) == {A.name}


def test_a_failed_pod_is_taken_from_its_job_before_it_counts(tracker: PodTracker) -> None:
    failed = replace(
        B, has_ended=True, has_failed=True, is_uncounted=True, how="ended with exit code 137"
    )
    others = NAMES - {B.name}
    assert tracker.look([A, failed, C], others, NOBODY, 1.0) == [
        ReleasePod(B.name, 1, "ended with exit code 137")
    ]
    released = replace(failed, is_uncounted=False)
    assert tracker.look([A, released, C], others, NOBODY, 1000.0) == []


def test_the_newest_failed_pods_are_kept_to_be_looked_at(tracker: PodTracker) -> None:
    failed = [
        replace(B, name=f"it-1-{number}", created=float(number), has_ended=True, has_failed=True)
        for number in range(KEPT + 2)
    ]
    assert tracker.look([*ALL, *failed], NAMES, NOBODY, 1.0) == [
        RemovePod("it-1-0"),
        RemovePod("it-1-1"),
    ]


def test_pods_that_kubernetes_has_ended_or_does_not_know_are_dismissed(
    tracker: PodTracker,
) -> None:
    """They were only cut off, and another has their index by now."""
    ended = replace(B, has_ended=True)
    assert tracker.look([A, ended], NAMES - {B.name}, {B.name}, 1.0) == [
        DismissPod(B.name),
        DismissPod(C.name),
    ]


def test_the_minimum_of_nodes_does_not_run_on_spot_machines() -> None:
    tracker = PodTracker(minimum_nodes=1)
    waiting = [replace(A, machine=None, is_gated=True), replace(B, machine=None, is_gated=True)]
    assert tracker.look(waiting, NOBODY, NOBODY, 0.0) == [
        PlacePod(A.name, 1, is_off_spot=True),
        PlacePod(B.name, 1, is_off_spot=False),
    ]


OUT_OF_MEMORY = "ended with exit code 137 (out of memory)"


def test_a_node_whose_pods_keep_failing_is_reported_once() -> None:
    crashes = CrashCounter()
    for time in (0.0, SEEN_SECONDS):
        assert crashes.add(1, OUT_OF_MEMORY, step=7, now=time) is None
    late = SEEN_SECONDS + 1
    assert crashes.add(0, OUT_OF_MEMORY, step=7, now=late) is None, "each node is counted alone"
    assert not crashes.is_hopeless
    why = crashes.add(1, OUT_OF_MEMORY, step=7, now=late)
    assert why == f"its pod {OUT_OF_MEMORY}, 3 times in a row without a new step"
    assert crashes.is_hopeless
    assert crashes.add(1, OUT_OF_MEMORY, step=7, now=late) is None


def test_a_run_that_makes_steps_is_not_hopeless() -> None:
    crashes = CrashCounter()
    for step in range(10):
        assert crashes.add(1, OUT_OF_MEMORY, step, now=step * SEEN_SECONDS) is None


def test_pods_that_fail_while_the_store_is_away_are_counted_by_the_time_of_the_outage() -> None:
    crashes = CrashCounter()
    for time in (0.0, 300.0, OUTAGE_SECONDS):
        assert crashes.add(1, "ended", step=None, now=time) is None
    why = crashes.add(1, "ended", step=None, now=OUTAGE_SECONDS + 1)
    assert why == "its pod ended, 4 times in a row while the run's storage could not be reached"
    back = CrashCounter()
    for time in range(20):
        assert back.add(1, "ended", step=None if time % 3 else time, now=200.0 * time) is None


def test_an_open_session_without_heartbeats_is_not_a_sign_of_life() -> None:
    """A machine without power closes nothing."""
    workers = {
        "headway-it-0-aaaaa.1/0.da8b6cd1": {"session": 0, "silent_seconds": 0.4},
        "headway-it-1-bbbbb.2/0.0c5e": {"session": 7, "silent_seconds": 9.0},
        "headway-it-2-ccccc.1/0.77aa": {"session": None, "silent_seconds": 0.1},
        "headway-it-3-ddddd.1/0.1234": {"session": 8, "silent_seconds": 9.0},
        "headway-it-3-ddddd.1/1.5678": {"session": 9, "silent_seconds": 1.0},
    }
    assert connected_pods({"pods": workers}) == {"headway-it-0-aaaaa", "headway-it-3-ddddd"}


def test_members_are_the_pods_of_the_generation() -> None:
    domains = [{"pods": ["it-0-a.1/0.aa", "it-0-a.1/1.bb"]}, {"pods": ["it-1-b.4/0.cc"]}]
    assert member_pods({"generation": {"domains": domains}}) == {"it-0-a", "it-1-b"}
