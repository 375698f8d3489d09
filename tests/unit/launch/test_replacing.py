"""When a pod is given up, and where its successor may go. No cluster: names and times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.launch.replacing import (
    ALONE_SECONDS,
    KEPT,
    LATE_SECONDS,
    LOST_SECONDS,
    START_SECONDS,
    SUSPECT_SECONDS,
    Keeping,
    Place,
    PodFacts,
    Release,
    Remove,
    Replace,
)

A = PodFacts("it-0-aaaaa", 0, "node1", 0.0, is_gated=False, gone_by=None, has_ended=False)
B = replace(A, name="it-1-bbbbb", index=1, node="node2")
C = replace(A, name="it-2-ccccc", index=2, node="node3")
ALL = [A, B, C]
NAMES = {pod.name for pod in ALL}
NOBODY: frozenset[str] = frozenset()
"""Whoever is missing is no member of the run any more: the coordinator goes on without it."""


@pytest.fixture
def keeping() -> Keeping:
    """All have been heard of, at time 0."""
    made = Keeping()
    assert made.look(ALL, NAMES, NOBODY, 0.0) == []
    return made


def test_a_pod_without_power_is_replaced_and_not_on_the_same_machine(keeping: Keeping) -> None:
    others = NAMES - {B.name}
    assert keeping.look(ALL, others, NOBODY, LOST_SECONDS - 0.1) == []
    assert keeping.look(ALL, others, NOBODY, LOST_SECONDS + 0.1) == [Replace(B.name, 1, "node2")]
    successor = replace(B, name="it-1-ddddd", node=None, is_gated=True)
    assert keeping.look([A, C, successor], others, NOBODY, 5.0) == [
        Place(successor.name, 1, ("node2",))
    ]


def test_a_machine_is_not_suspected_for_ever(keeping: Keeping) -> None:
    keeping.look(ALL, NAMES - {B.name}, NOBODY, LOST_SECONDS + 0.1)
    late = LOST_SECONDS + SUSPECT_SECONDS + 0.2
    successor = replace(B, name="it-1-ddddd", node=None, is_gated=True)
    assert keeping.look([successor], set(), NOBODY, late) == [Place(successor.name, 1, ())]


def test_a_worker_that_is_started_again_in_its_pod_is_no_loss(keeping: Keeping) -> None:
    assert keeping.look(ALL, NAMES - {B.name}, NOBODY, 2.0) == []
    assert keeping.look(ALL, NAMES, NOBODY, 3.0) == []
    assert keeping.look(ALL, NAMES - {B.name}, NOBODY, 3.0 + LOST_SECONDS - 0.1) == []


def test_when_nobody_is_heard_of_all_are_waited_for_longer(keeping: Keeping) -> None:
    assert keeping.look(ALL, set(), NOBODY, ALONE_SECONDS - 0.1) == []
    lost = keeping.look(ALL, set(), NOBODY, ALONE_SECONDS + 0.1)
    assert lost == [Replace(pod.name, pod.index, pod.node) for pod in ALL]


def test_one_that_was_never_heard_of_is_still_starting(keeping: Keeping) -> None:
    new = replace(B, name="it-3-eeeee", index=3, node="node1", created=100.0)
    assert keeping.look([*ALL, new], NAMES, NOBODY, 1000.0) == []


def test_unless_its_machine_has_lost_another(keeping: Keeping) -> None:
    new = replace(B, name="it-3-eeeee", index=3, created=0.0)
    keeping.look([*ALL, new], NAMES - {B.name}, NOBODY, LOST_SECONDS + 0.1)
    left = [A, C, new]
    assert keeping.look(left, NAMES, NOBODY, START_SECONDS - 1) == []
    assert keeping.look(left, NAMES, NOBODY, START_SECONDS + 1) == [Replace(new.name, 3, "node2")]


def test_one_that_leaves_has_its_grace(keeping: Keeping) -> None:
    leaving = replace(B, gone_by=120.0)
    others = NAMES - {B.name}
    assert keeping.look([A, leaving, C], others, NOBODY, 119.0) == []
    late = 120.0 + LATE_SECONDS + 1
    assert keeping.look([A, leaving, C], others, NOBODY, late) == [Replace(B.name, 1, "node2")]


def test_but_not_on_a_machine_without_power(keeping: Keeping) -> None:
    """Kubernetes tells the pods of a lost machine to go, and nobody is there to hear it."""
    keeping.suspects["node2"] = 1000.0
    leaving = replace(B, gone_by=120.0)
    assert keeping.look([leaving], NAMES - {B.name}, NOBODY, 1.0) == [Replace(B.name, 1, "node2")]


def test_one_that_has_ended_is_for_kubernetes_to_replace(keeping: Keeping) -> None:
    ended = replace(B, has_ended=True)
    assert keeping.look([A, ended, C], NAMES - {B.name}, NOBODY, 1000.0) == []


def test_a_member_is_not_given_up_before_the_coordinator_goes_on_without_it() -> None:
    """After a restart of the coordinator they train on, and find it at different times."""
    keeping = Keeping()
    keeping.expect(NAMES, 0.0)
    others = NAMES - {B.name}
    assert keeping.look(ALL, set(), NAMES, 15.0) == []
    assert keeping.look(ALL, others, NAMES, 16.0) == []
    assert keeping.look(ALL, others, others, 17.0) == [Replace(B.name, 1, "node2")]


def test_unless_kubernetes_does_not_hear_of_its_machine_either(keeping: Keeping) -> None:
    told = replace(B, gone_by=180.0)
    assert keeping.look([A, told, C], set(), NAMES, 60.0) == []
    unheard = replace(told, is_cut_off=True)
    assert keeping.look([A, unheard, C], set(), NAMES, 61.0) == [Replace(B.name, 1, "node2")]
    assert keeping.look([A, unheard, C], NAMES, NAMES, 62.0) == []


def test_what_is_gone_is_forgotten(keeping: Keeping) -> None:
    keeping.look([A], {A.name}, NOBODY, 1.0)
    assert set(keeping.heard) == {A.name}


def test_a_failed_pod_is_taken_from_its_job_before_it_counts(keeping: Keeping) -> None:
    failed = replace(
        B, has_ended=True, has_failed=True, is_uncounted=True, how="ended with exit code 137"
    )
    others = NAMES - {B.name}
    assert keeping.look([A, failed, C], others, NOBODY, 1.0) == [
        Release(B.name, 1, "ended with exit code 137")
    ]
    released = replace(failed, is_uncounted=False)
    assert keeping.look([A, released, C], others, NOBODY, 1000.0) == []


def test_the_newest_failed_pods_are_kept_to_be_looked_at(keeping: Keeping) -> None:
    failed = [
        replace(B, name=f"it-1-{number}", created=float(number), has_ended=True, has_failed=True)
        for number in range(KEPT + 2)
    ]
    assert keeping.look([*ALL, *failed], NAMES, NOBODY, 1.0) == [Remove("it-1-0"), Remove("it-1-1")]
