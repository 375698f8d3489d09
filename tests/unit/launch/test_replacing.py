"""When a pod is given up, and where its successor may go. No cluster: names and times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.launch.replacing import (
    ALONE_SECONDS,
    BACK_SECONDS,
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


@pytest.fixture
def keeping() -> Keeping:
    """All have been heard of, at time 0."""
    made = Keeping()
    assert made.look(ALL, NAMES, 0.0) == []
    return made


def test_a_pod_without_power_is_replaced_and_not_on_the_same_machine(keeping: Keeping) -> None:
    others = NAMES - {B.name}
    assert keeping.look(ALL, others, LOST_SECONDS - 0.1) == []
    assert keeping.look(ALL, others, LOST_SECONDS + 0.1) == [Replace(B.name, 1, "node2")]
    successor = replace(B, name="it-1-ddddd", node=None, is_gated=True)
    assert keeping.look([A, C, successor], others, 5.0) == [Place(successor.name, 1, ("node2",))]


def test_a_machine_is_not_suspected_for_ever(keeping: Keeping) -> None:
    keeping.look(ALL, NAMES - {B.name}, LOST_SECONDS + 0.1)
    late = LOST_SECONDS + SUSPECT_SECONDS + 0.2
    successor = replace(B, name="it-1-ddddd", node=None, is_gated=True)
    assert keeping.look([successor], set(), late) == [Place(successor.name, 1, ())]


def test_a_worker_that_is_started_again_in_its_pod_is_no_loss(keeping: Keeping) -> None:
    assert keeping.look(ALL, NAMES - {B.name}, 2.0) == []
    assert keeping.look(ALL, NAMES, 3.0) == []
    assert keeping.look(ALL, NAMES - {B.name}, 3.0 + LOST_SECONDS - 0.1) == []


def test_when_nobody_is_heard_of_all_are_waited_for_longer(keeping: Keeping) -> None:
    assert keeping.look(ALL, set(), ALONE_SECONDS - 0.1) == []
    lost = keeping.look(ALL, set(), ALONE_SECONDS + 0.1)
    assert lost == [Replace(pod.name, pod.index, pod.node) for pod in ALL]


def test_one_that_was_never_heard_of_is_still_starting(keeping: Keeping) -> None:
    new = replace(B, name="it-3-eeeee", index=3, node="node1", created=100.0)
    assert keeping.look([*ALL, new], NAMES, 1000.0) == []


def test_unless_its_machine_has_lost_another(keeping: Keeping) -> None:
    new = replace(B, name="it-3-eeeee", index=3, created=0.0)
    keeping.look([*ALL, new], NAMES - {B.name}, LOST_SECONDS + 0.1)
    left = [A, C, new]
    assert keeping.look(left, NAMES, START_SECONDS - 1) == []
    assert keeping.look(left, NAMES, START_SECONDS + 1) == [Replace(new.name, 3, "node2")]


def test_one_that_leaves_has_its_grace(keeping: Keeping) -> None:
    leaving = replace(B, gone_by=120.0)
    others = NAMES - {B.name}
    assert keeping.look([A, leaving, C], others, 119.0) == []
    late = 120.0 + LATE_SECONDS + 1
    assert keeping.look([A, leaving, C], others, late) == [Replace(B.name, 1, "node2")]


def test_but_not_on_a_machine_without_power(keeping: Keeping) -> None:
    """Kubernetes tells the pods of a lost machine to go, and nobody is there to hear it."""
    keeping.suspects["node2"] = 1000.0
    leaving = replace(B, gone_by=120.0)
    assert keeping.look([leaving], NAMES - {B.name}, 1.0) == [Replace(B.name, 1, "node2")]


def test_one_that_has_ended_is_for_kubernetes_to_replace(keeping: Keeping) -> None:
    ended = replace(B, has_ended=True)
    assert keeping.look([A, ended, C], NAMES - {B.name}, 1000.0) == []


def test_after_a_restart_of_the_coordinator_members_come_back_first() -> None:
    keeping = Keeping()
    keeping.expect(NAMES, 0.0)
    others = NAMES - {B.name}
    assert keeping.look(ALL, others, LOST_SECONDS + 0.1) == []
    late = BACK_SECONDS + LOST_SECONDS + 0.1
    assert keeping.look(ALL, others, late) == [Replace(B.name, 1, "node2")]


def test_what_is_gone_is_forgotten(keeping: Keeping) -> None:
    keeping.look([A], {A.name}, 1.0)
    assert set(keeping.heard) == {A.name}


def test_a_failed_pod_is_taken_from_its_job_before_it_counts(keeping: Keeping) -> None:
    failed = replace(
        B, has_ended=True, has_failed=True, is_uncounted=True, how="ended with exit code 137"
    )
    others = NAMES - {B.name}
    assert keeping.look([A, failed, C], others, 1.0) == [
        Release(B.name, 1, "ended with exit code 137")
    ]
    released = replace(failed, is_uncounted=False)
    assert keeping.look([A, released, C], others, 1000.0) == []


def test_the_newest_failed_pods_are_kept_to_be_looked_at(keeping: Keeping) -> None:
    failed = [
        replace(B, name=f"it-1-{number}", created=float(number), has_ended=True, has_failed=True)
        for number in range(KEPT + 2)
    ]
    assert keeping.look([*ALL, *failed], NAMES, 1.0) == [Remove("it-1-0"), Remove("it-1-1")]
