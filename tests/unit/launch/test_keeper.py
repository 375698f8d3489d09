"""What a user notices of the keeper, over a fake API server: pods are replaced, runs are stopped,
and what happened is noted. `test_planted_defects` breaks the code and runs these again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headway.errors import Exit
from headway.kube.kueue import JOB, STOPPED, WORKLOAD_NAMES
from headway.kube.names import KEEP_FAILED, QUEUE, SUSPECT, SUSPECT_UNTIL, labels
from headway.launch.failure_domains import SEEN_SECONDS
from headway.launch.forgotten_markers import (
    FORGOTTEN_SECONDS,
    INTERVAL_SECONDS,
    WAITING_SECONDS,
)
from headway.launch.job_keeper import BUDGET_SECONDS, JOB_SECONDS, LAUNCH_SECONDS
from headway.launch.pod_decisions import (
    ALONE_SECONDS,
    BLOCKED_SECONDS,
    BROKEN_SECONDS,
    KEPT,
    LOST_SECONDS,
    MOST_TAKEN_BACK,
    SUSPECT_SECONDS,
)
from support.chains import begun
from support.fake_kube import coordinator_path
from support.fake_pods import PODS
from support.kept_run import JOBS, Code, KeptRun, kept_run

OUT_OF_MEMORY = "ended with exit code 137 (out of memory)"
SETTINGS = ("budget.hours=2",)
SETTLED = 1.0
"""Seconds until a call was made and its outcome noted."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeptRun]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with kept_run(tmp_path, Code(), *SETTINGS) as made:
        yield made


# Pods


def test_a_lost_pod_is_replaced_on_another_machine(run: KeptRun) -> None:
    first, second, _ = run.begin("node1", "node2", "node3")
    run.lose_power(second)
    run.look(LOST_SECONDS - 1)
    assert not run.is_marker(second), "its worker may be restarting"
    run.look(2 + SETTLED)
    assert run.is_marker(second), "nothing is scheduled where it is"
    assert not run.is_marker(first)
    assert second in run.coordinator.dismissed
    (lost,) = run.events("lost")
    assert (lost["node"], lost["how"]) == (1, f"no longer answers ({second})")
    assert f"{second} is lost; node2 gets no pods for a while" in run.said
    assert run.calls("PATCH", second) == 1, "by one call: the Job would act on a part of it"
    replace_lost(run)
    run.look(SUSPECT_SECONDS - LOST_SECONDS - 5)
    assert run.is_marker(second)
    assert run.events("replaced") == [], "it has not joined the run yet"
    run.start_pod("it-1-second", "node3")
    run.look()
    (replaced,) = run.events("replaced")
    assert (replaced["node"], replaced["pod"]) == (1, "it-1-second")


def replace_lost(run: KeptRun, machine: str = "node3") -> None:
    """As the Job and the scheduler do for the second node."""
    run.create_pod(1, "it-1-second")
    run.schedule_pod("it-1-second", machine)


def lose_one(run: KeptRun) -> str:
    """Of three pods the second, on node2, which it marks."""
    _, second, _ = run.begin("node1", "node2", "node3")
    run.lose_power(second)
    run.look(LOST_SECONDS + SETTLED)
    assert run.is_marker(second)
    return second


def test_a_machine_that_lost_a_pod_is_used_again_later(run: KeptRun) -> None:
    second = lose_one(run)
    replace_lost(run)
    run.look(SUSPECT_SECONDS + SETTLED)
    assert not run.has_pod(second)
    assert run.calls("DELETE", second) == 1
    run.create_pod(2, "it-2-second")
    run.schedule_pod("it-2-second", "node2")
    run.look(10)
    assert run.has_pod("it-2-second")


def test_a_pod_that_is_scheduled_on_the_machine_nevertheless_is_taken_back(run: KeptRun) -> None:
    lose_one(run)
    replace_lost(run, "node2")
    run.look(SETTLED)
    assert not run.has_pod("it-1-second")
    assert "it-1-second" in run.coordinator.dismissed
    assert "it-1-second was scheduled on node2, and is taken back" in run.said
    assert len(run.events("lost")) == 1, "it never was in the run"


def break_device(run: KeptRun) -> None:
    """Of the machine of the second pod of three."""
    _, second, _ = run.begin("node1", "node2", "node3")
    run.end_pod(second, Exit.DEVICE_LOST, "device 3 has failed: uncorrectable ECC error")
    run.look(SETTLED)


def test_a_machine_whose_device_failed_gets_no_pods_for_hours(run: KeptRun) -> None:
    break_device(run)
    assert not run.job["spec"]["suspend"]
    (lost,) = run.events("lost")
    assert "device 3 has failed: uncorrectable ECC error" in lost["how"]
    (left_out,) = run.events("left_out")
    assert (left_out["node"], left_out["machine"]) == (1, "node2")
    run.clock.passed += BROKEN_SECONDS - 60
    replace_lost(run, "node2")
    run.look(SETTLED)
    assert not run.has_pod("it-1-second")
    run.clock.passed += 60
    run.create_pod(1, "it-1-third")
    run.schedule_pod("it-1-third", "node2")
    run.look(SETTLED)
    assert run.has_pod("it-1-third")


def test_such_a_machine_is_used_where_no_other_has_room(run: KeptRun) -> None:
    """The scheduler places one pod after the other there."""
    break_device(run)
    for number in range(MOST_TAKEN_BACK + 1):
        name = f"it-1-again{number}"
        run.create_pod(1, name)
        run.schedule_pod(name, "node2")
        run.look(SETTLED)
        assert run.has_pod(name) == (number == MOST_TAKEN_BACK)


def test_a_pod_stays_on_a_machine_that_is_back(run: KeptRun) -> None:
    """Its kubelet has said that the lost pod has ended."""
    second = lose_one(run)
    run.end_pod(second, 255)
    replace_lost(run, "node2")
    run.look(SETTLED)
    assert "node2 is back, and may have pods again" in run.said
    assert "it-1-second" not in run.coordinator.dismissed
    run.look(SETTLED)
    assert run.has_pod("it-1-second")
    assert not run.has_pod(second)


def put_marker_of(run: KeptRun, other: str, until: float) -> None:
    """Of another run."""
    metadata = {
        "name": f"{other}-1-lost",
        "namespace": "ml",
        "labels": labels(other) | {SUSPECT: "true"},
        "annotations": {SUSPECT_UNTIL: f"{until:.0f}"},
    }
    spec = {"containers": [], "nodeName": "node2"}
    pod = {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}
    run.kube.put(f"{PODS}/{other}-1-lost", pod)


def test_a_marker_that_another_run_has_forgotten_is_deleted_when_a_pod_waits(run: KeptRun) -> None:
    run.begin("node1")
    put_marker_of(run, "other", run.clock.now())
    put_marker_of(run, "careful", run.clock.now() + 10 * FORGOTTEN_SECONDS)
    run.look(2 * FORGOTTEN_SECONDS)
    assert run.has_pod("other-1-lost"), "nobody misses a machine"
    run.create_pod(1, "it-1-first")
    run.look(WAITING_SECONDS - 5)
    assert run.has_pod("other-1-lost"), "the scheduler has not had its time"
    run.look(10)
    assert not run.has_pod("other-1-lost")
    assert run.has_pod("careful-1-lost")
    assert "deleted other-1-lost, which had kept pods off its machine for too long" in run.said
    lists = run.kube.pods.num_lists
    run.look(INTERVAL_SECONDS / 2)
    assert run.kube.pods.num_lists == lists, "not at each look"


def test_a_marker_that_leaves_no_room_for_its_replacement_is_deleted(run: KeptRun) -> None:
    """By a quota: the Job cannot make the pod, and tries again."""
    second = lose_one(run)
    run.look(BLOCKED_SECONDS + 1 + SETTLED)
    assert not run.has_pod(second)
    replace_lost(run, "node2")
    run.look(SETTLED)
    assert not run.has_pod("it-1-second"), "the machine is suspect without it"


def test_a_failed_deletion_of_a_marker_is_retried(run: KeptRun) -> None:
    second = lose_one(run)
    replace_lost(run)
    run.kube.failing[f"DELETE {PODS}/{second}"] = 2
    run.look(SUSPECT_SECONDS + 3 * SETTLED)
    assert not run.has_pod(second)
    assert run.calls("DELETE", second) == 3


def test_a_new_keeper_finds_the_markers_of_the_one_before(run: KeptRun) -> None:
    second = lose_one(run)
    replace_lost(run)
    run.look()
    run.keeper.pods.watch.stop()
    run.keeper = run.new_keeper()
    run.keeper.pods.watch.start()
    run.kube.failing[f"GET {PODS}"] = 3  # the watch and the markers are asked for again
    run.look(SUSPECT_SECONDS / 2)
    assert run.is_marker(second)
    run.look(SUSPECT_SECONDS / 2)
    assert not run.has_pod(second)


def test_a_keeper_that_comes_after_the_runs_end_deletes_its_markers(run: KeptRun) -> None:
    """Else the machine would be closed to every run of the namespace."""
    second = lose_one(run)
    run.keeper.pods.watch.stop()
    for name in sorted(run.coordinator.members):
        run.end_pod(name, 6)
    run.end_job("Complete")
    run.pod(second)["metadata"]["annotations"][SUSPECT_UNTIL] = "edited"
    run.keeper = run.new_keeper()
    run.keeper.pods.watch.start()
    run.look(3 * JOB_SECONDS)
    assert not run.is_kept
    assert not run.has_pod(second)


@pytest.mark.parametrize("end", ["stopped", "complete", "failed"])
def test_when_a_run_ends_its_markers_go_before_the_keeper(run: KeptRun, end: str) -> None:
    second = lose_one(run)
    run.kube.failing[f"DELETE {PODS}/{second}"] = 1
    for name in sorted(run.coordinator.members):
        run.end_pod(name, 6)
    if end == "stopped":
        run.job["spec"]["suspend"] = True
    else:
        run.end_job(end.title())
    run.look(JOB_SECONDS)
    assert run.is_kept, "its first attempt has failed"
    run.look(2 * JOB_SECONDS)
    assert not run.has_pod(second)
    assert not run.is_kept


def test_pods_are_replaced_later_when_no_pod_is_heard_of(run: KeptRun) -> None:
    """It may be the coordinator's own machine that is cut off."""
    names = run.begin("node1", "node2")
    run.lose_power(*names)
    run.look(ALONE_SECONDS - 5)
    assert not any(run.is_marker(name) for name in names)
    run.look(10)
    assert all(run.is_marker(name) for name in names)


def test_a_member_is_left_alone_while_a_new_coordinator_waits_for_it(run: KeptRun) -> None:
    first, second = run.begin("node1", "node2")
    run.coordinator.connected -= {second}
    run.look(30)
    assert not run.is_marker(second)
    assert run.coordinator.dismissed == set()
    run.coordinator.members -= {second}
    run.look(SETTLED)
    assert run.is_marker(second)
    assert not run.is_marker(first)


def test_while_the_coordinator_restarts_no_pod_is_lost(run: KeptRun) -> None:
    names = run.begin("node1", "node2")
    run.coordinator.died, run.coordinator.answers = "signal 9", False
    run.look(30)
    assert not any(run.is_marker(name) for name in names)
    (lost,) = run.events("coordinator_lost")
    assert lost["how"] == "signal 9"


def test_the_minimum_of_nodes_is_kept_off_spot_machines(run: KeptRun) -> None:
    run.begin()
    run.create_pod(0, "it-0-a", is_gated=True)
    run.create_pod(1, "it-1-a", is_gated=True)
    run.look()
    assert run.is_placed("it-0-a")
    assert run.is_off_spot("it-0-a")
    assert run.is_placed("it-1-a")
    assert not run.is_off_spot("it-1-a")


def test_a_failed_pod_is_released_so_that_its_job_replaces_it_at_once(run: KeptRun) -> None:
    _, second = run.begin("node1", "node2")
    run.end_pod(second, 137, reason="OOMKilled")
    run.look(SETTLED)
    assert run.is_released(second)
    assert run.has_pod(second), "its log can be read"
    (lost,) = run.events("lost")
    assert (lost["node"], lost["how"]) == (1, f"{OUT_OF_MEMORY} ({second})")
    assert second in run.coordinator.dismissed


def test_a_pod_that_left_when_asked_is_not_lost(run: KeptRun) -> None:
    _, second = run.begin("node1", "node2")
    run.end_pod(second, 6)
    run.look(SETTLED)
    assert run.is_released(second)
    assert run.events("lost") == []


def test_of_many_failed_pods_the_newest_are_kept(run: KeptRun) -> None:
    run.begin("node1")
    for number in range(KEPT + 2):
        name = f"it-1-{number}"
        run.create_pod(1, name, age_seconds=100.0 - number)
        run.end_pod(name, 6)
    run.look(2 * SETTLED)
    left = [number for number in range(KEPT + 2) if run.has_pod(f"it-1-{number}")]
    assert left == list(range(2, KEPT + 2))


def test_pods_of_a_stopped_run_have_their_grace_period_and_are_not_replaced(run: KeptRun) -> None:
    first, second = run.begin("node1", "node2")
    run.stop(grace_seconds=120)
    run.lose_power(second)
    run.look(60)
    assert run.has_pod(first)
    assert run.has_pod(second), "it may still save"
    assert run.events("lost") == []


def test_pods_of_a_stopped_run_that_come_back_are_dismissed_and_not_replaced(run: KeptRun) -> None:
    """They were cut off when it was stopped; Kubernetes has deleted them meanwhile."""
    first, second = run.begin("node1", "node2")
    run.job["spec"]["suspend"] = True
    for name in (first, second):
        del run.kube.objects[f"{PODS}/{name}"]
        run.keeper.pods.watch.forget(name)
    run.look(SETTLED)
    assert run.coordinator.dismissed == {first, second}
    assert run.events("lost") == []


# The Job


def fail_often(run: KeptRun, times: int, step_each_time: bool = False) -> None:
    """A pod that runs out of memory after each start."""
    begun = len(run.events("lost"))
    for number in range(begun, begun + times):
        name = f"it-1-oom{number}"
        run.create_pod(1, name)
        run.look(SETTLED)
        run.start_pod(name, "node2")
        run.end_pod(name, 137, reason="OOMKilled")
        if step_each_time:
            run.train(step=number + 1)
        run.look(SETTLED)
        run.clock.passed += SEEN_SECONDS
        run.look(2 * JOB_SECONDS)


def test_a_run_whose_pods_keep_running_out_of_memory_is_stopped(run: KeptRun) -> None:
    run.begin("node1")
    fail_often(run, 2)
    assert not run.job["spec"]["suspend"]
    fail_often(run, 1)
    assert run.job["spec"]["suspend"]
    why = f"its pod {OUT_OF_MEMORY}, 3 times in a row without a new step"
    assert f"node 1: {why}: the run stops" in run.said
    (failed,) = run.events("failed")
    assert (failed["node"], failed["words"]) == (1, why)


def test_a_run_that_makes_steps_in_between_continues(run: KeptRun) -> None:
    run.begin("node1")
    fail_often(run, 5, step_each_time=True)
    assert not run.job["spec"]["suspend"]
    assert run.events("failed") == []


def test_a_run_is_stopped_when_its_budget_is_used_up(run: KeptRun) -> None:
    run.begin("node1")
    run.clock.passed += 3600
    run.train(step=1)
    run.look(BUDGET_SECONDS)
    assert not run.job["spec"]["suspend"]
    run.clock.passed += 3600
    run.train(step=2)
    run.look(BUDGET_SECONDS)
    assert run.job["spec"]["suspend"]
    (noted,) = run.events("budget")
    assert noted["hours"] == 2
    assert noted["spent_hours"] == pytest.approx(2.0, abs=0.02)
    assert "the budget of 2 hours is used up: the run saves and stops" in run.said


def test_scaling_is_noted_once(run: KeptRun) -> None:
    run.begin("node1", "node2")
    run.look(3 * JOB_SECONDS)
    assert run.events("scaled") == []
    run.job["spec"]["parallelism"] = 5
    run.look(3 * JOB_SECONDS)
    (scaled,) = run.events("scaled")
    assert (scaled["before"], scaled["nodes"]) == (2, 5)


def test_a_stopped_run_ends_its_coordinator_after_its_last_pod(run: KeptRun) -> None:
    first, second = run.begin("node1", "node2")
    run.job["spec"]["suspend"] = True
    run.end_pod(first, 6)
    run.look(3 * JOB_SECONDS)
    assert run.is_kept, "the last one saves"
    run.end_pod(second, 6)
    run.look(3 * JOB_SECONDS)
    assert not run.is_kept
    assert run.events("lost") == []


def test_a_run_that_is_resumed_at_once_keeps_its_coordinator(
    run: KeptRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = run.begin("node1")
    run.job["spec"]["suspend"] = True
    run.end_pod(first, 6)
    resume = partial(run.job["spec"].__setitem__, "suspend", False)
    monkeypatch.setattr(run.keeper.notes, "flush", resume)  # takes seconds in a bucket
    run.look(3 * JOB_SECONDS)
    assert run.is_kept


def test_a_run_resumed_in_the_last_moment_gets_its_coordinator_back(
    run: KeptRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper has found it stopped, and ends its own pod after `resume` has asked for one."""
    (first,) = run.begin("node1")
    run.job["spec"]["suspend"] = True
    run.end_pod(first, 6)
    scale = run.keeper.kube.scale_replica_set

    def scale_late(name: str, replicas: int) -> None:
        if replicas == 0:
            run.job["spec"]["suspend"] = False
        scale(name, replicas)

    monkeypatch.setattr(run.keeper.kube, "scale_replica_set", scale_late)
    run.look(3 * JOB_SECONDS)
    assert run.is_kept


def test_a_run_suspended_by_its_queue_is_left_alone(run: KeptRun) -> None:
    (first,) = run.begin("node1")
    run.job["metadata"]["labels"][QUEUE] = "gpus"
    run.job["spec"]["suspend"] = True
    run.end_pod(first, 6)
    run.look(3 * JOB_SECONDS)
    assert run.is_kept
    run.job["metadata"]["annotations"] = {STOPPED: "true"}
    run.look(3 * JOB_SECONDS)
    assert not run.is_kept, "this time a person stopped it"


def test_a_run_that_its_queue_failed_to_start_again_is_mended(run: KeptRun) -> None:
    """Kueue 0.17, if the run was scaled before: else it would wait for ever."""
    run.begin("node1")
    workload = {"metadata": {"name": "w", "labels": {JOB: run.job["metadata"]["uid"]}}}
    run.kube.others = ("workloads",)
    run.kube.put("/apis/kueue.x-k8s.io/v1beta2/namespaces/ml/workloads/w", workload)
    run.job["metadata"]["labels"][QUEUE] = "gpus"
    run.job["spec"] |= {
        "suspend": True,
        "template": {"metadata": {"annotations": dict.fromkeys(WORKLOAD_NAMES, "v")}},
    }
    run.job["status"] = {}
    run.look(2 * JOB_SECONDS)
    assert run.calls("PATCH", "headway-it") == 0, "it waits for room"
    workload["status"] = {"conditions": [{"type": "Finished", "status": "True"}]}
    run.look(2 * JOB_SECONDS)
    assert run.job["spec"]["template"] == {"metadata": {"annotations": {}}}


def test_a_failed_run_notes_the_node_that_failed_and_its_last_words(run: KeptRun) -> None:
    _, second = run.begin("node1", "node2")
    run.end_pod(second, 1, f"KeyError: mine\nworker {second}.1/0 ended with exit code 1")
    run.end_job("Failed", "a pod failed with exit code 1 matching FailJob rule")
    run.look(2 * JOB_SECONDS)
    assert not run.is_kept
    (failed,) = run.events("failed")
    assert (failed["node"], failed["words"]) == (1, "KeyError: mine")
    assert failed["how"] == "ended with exit code 1"


def test_why_a_pod_gave_up_is_noted(run: KeptRun) -> None:
    _, second = run.begin("node1", "node2")
    run.end_pod(second, 7, "waited 300 s for s3://team/runs/it: Access Denied")
    run.look(SETTLED)
    (lost,) = run.events("lost")
    assert lost["how"] == (
        f"ended with exit code 7: waited 300 s for s3://team/runs/it: Access Denied ({second})"
    )


@pytest.mark.trap(9)
def test_an_image_that_a_machine_cannot_execute_ends_the_run_at_once(run: KeptRun) -> None:
    """With this code its Job would try again for ever."""
    _, second = run.begin("node1", "node2")
    run.end_pod(second, 255, "exec /bin/headway: exec format error")
    run.look(SETTLED)
    run.look(2 * JOB_SECONDS)
    assert run.job["spec"]["suspend"]
    (failed,) = run.events("failed")
    assert failed["node"] == 1
    assert "cannot be executed on machine node2" in failed["message"]
    assert "architecture: amd64" in failed["hint"]


def test_a_run_that_has_trained_goes_on_when_one_machine_cannot_execute_its_image(
    run: KeptRun,
) -> None:
    """A replacement went to a machine of another architecture."""
    _, second = run.begin("node1", "node2")
    run.train(50)
    run.end_pod(second, 255, "exec /bin/headway: exec format error")
    run.look(SETTLED)
    run.look(2 * JOB_SECONDS)
    assert not run.job["spec"].get("suspend")
    assert run.events("failed") == []


def test_a_failed_run_without_a_failed_pod_notes_what_its_job_says(run: KeptRun) -> None:
    run.begin("node1")
    run.end_job("Failed", "DeadlineExceeded")
    run.look(2 * JOB_SECONDS)
    assert not run.is_kept
    (failed,) = run.events("failed")
    assert (failed["node"], failed["words"]) == (0, "DeadlineExceeded")


def test_a_failed_run_is_kept_as_long_as_its_target_says(run: KeptRun) -> None:
    run.begin("node1")
    run.job["metadata"]["annotations"] = {KEEP_FAILED: "259200"}
    run.job["spec"]["ttlSecondsAfterFinished"] = 3600
    run.look(2 * JOB_SECONDS)
    assert run.job["spec"]["ttlSecondsAfterFinished"] == 3600
    run.end_job("Failed", "DeadlineExceeded")
    run.look(2 * JOB_SECONDS)
    assert run.job["spec"]["ttlSecondsAfterFinished"] == 259200


def test_a_failed_run_is_kept_as_long_also_if_its_storage_is_away(
    run: KeptRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("the bucket does not answer")

    run.begin("node1")
    run.job["metadata"]["annotations"] = {KEEP_FAILED: "259200"}
    run.end_job("Failed", "DeadlineExceeded")
    monkeypatch.setattr(run.directory, "history", fail)
    run.look(2 * JOB_SECONDS)
    assert run.job["spec"]["ttlSecondsAfterFinished"] == 259200
    assert "the bucket does not answer" in run.said


def test_the_keeper_of_a_failed_run_does_not_end_before_the_run_is_kept(run: KeptRun) -> None:
    """Nobody else would do it, and its pods and logs would be gone after an hour."""
    run.begin("node1")
    run.job["metadata"]["annotations"] = {KEEP_FAILED: "259200"}
    run.end_job("Failed", "DeadlineExceeded")
    run.kube.failing[f"PATCH {JOBS}/headway-it"] = 2
    run.look(JOB_SECONDS)
    assert run.is_kept
    assert len(run.events("failed")) == 1, "that does not wait"
    run.look(3 * JOB_SECONDS)
    assert run.job["spec"]["ttlSecondsAfterFinished"] == 259200
    assert not run.is_kept
    assert len(run.events("failed")) == 1


@pytest.mark.parametrize("edited", ["three days", "-1", "99999999999", ""])
def test_a_failed_run_stays_if_somebody_has_edited_how_long(run: KeptRun, edited: str) -> None:
    run.begin("node1")
    run.job["metadata"]["annotations"] = {KEEP_FAILED: edited}
    run.job["spec"]["ttlSecondsAfterFinished"] = 3600
    run.end_job("Failed", "DeadlineExceeded")
    run.look(2 * JOB_SECONDS)
    assert "ttlSecondsAfterFinished" not in run.job["spec"]
    assert not run.is_kept


# Its own pod


@pytest.mark.parametrize("how", ["complete", "deleted"])
def test_the_keeper_has_its_pod_ended_when_its_job_has_ended(run: KeptRun, how: str) -> None:
    """It does not end by itself: Kubernetes would start it again."""
    run.begin("node1")
    if how == "complete":
        run.end_job("Complete")
    else:
        run.delete_job()
    run.look(2 * JOB_SECONDS)
    assert not run.is_kept
    assert not run.keeper.is_stopping
    assert run.events("failed") == []


def test_a_run_that_was_deleted_with_its_coordinator_is_no_error(run: KeptRun) -> None:
    run.begin("node1")
    run.delete_job()
    del run.kube.objects[coordinator_path("it")]
    run.keeper.look(run.coordinator)
    run.clock.passed += JOB_SECONDS
    run.keeper.look(run.coordinator)
    assert run.said == []


def test_the_keeper_ends_when_its_job_was_deleted_before_it_began(run: KeptRun) -> None:
    run.delete_job()
    assert run.started_job() is None


def test_the_keeper_of_an_interrupted_launch_ends(run: KeptRun) -> None:
    """Its workers were never started, and would have waited for it forever."""
    run.job["spec"]["suspend"] = True
    del run.job["status"]["startTime"]
    run.kube.failing[f"PATCH {coordinator_path('it')}/scale"] = 1

    def has_ended() -> None:
        """By Kubernetes, since there is to be no pod."""
        assert run.clock.passed < LAUNCH_SECONDS + 5, "it waits forever"
        run.keeper.is_stopping = not run.is_kept

    run.clock.meanwhile = has_ended
    assert run.started_job() is None
    assert run.clock.passed > LAUNCH_SECONDS
    assert any("the launch was interrupted" in words for words in run.said)


def test_a_keeper_waits_for_its_queue_without_end(run: KeptRun) -> None:
    run.job["spec"]["suspend"] = True
    run.job["metadata"]["labels"][QUEUE] = "gpus"
    del run.job["status"]["startTime"]

    def admitted() -> None:
        if run.clock.passed > 24 * 3600:
            run.job["spec"]["suspend"] = False
            run.job["status"]["startTime"] = "2026-11-17T09:00:00Z"
        run.clock.passed += 600  # days in a few looks

    run.clock.meanwhile = admitted
    assert run.started_job() is not None
    assert run.is_kept


def test_a_replaced_coordinator_pod_does_not_start_a_new_launch(run: KeptRun) -> None:
    run.begin("node1")
    job = run.started_job()
    assert run.new_keeper().job.note_launch(job) is None
    assert len(run.events("launched")) == 1
    (lost,) = run.events("coordinator_lost")
    assert lost["how"] == "its pod was replaced"


def test_a_keeper_lost_before_its_launch_was_recorded_is_followed_by_one_that_records_it(
    run: KeptRun,
) -> None:
    """Else its generations would begin at 1 again, and those of the run directory refuse them."""
    begun(run.directory, 6, 40, "another")
    assert run.launch(run.keeper) == 6
    assert run.launch(run.new_keeper()) == 6, "nothing is recorded yet"
    run.record_generation(6)
    assert run.launch(run.new_keeper()) is None, "whoever is in the record may be training"
    assert len(run.events("launched")) == 1


def test_workers_that_trained_before_their_launch_was_noted_are_kept(run: KeptRun) -> None:
    """It is noted late while the store is away from the keeper alone."""
    run.record_generation(1)
    begun(run.directory, 1, 0, run.job["metadata"]["uid"])
    assert run.launch(run.keeper) == 1
    assert run.launch(run.new_keeper()) is None


def test_a_keeper_that_cannot_read_the_record_yet_waits_for_the_api_server(
    run: KeptRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.begin("node1")
    keeper, job = run.new_keeper(), run.started_job()
    answer, num_failures = run.kube.answer, 0

    def fail(method: str, path: str, *others: Any) -> Any:
        nonlocal num_failures
        if "/configmaps/" in path and num_failures < 5:
            num_failures += 1
            return 200, b"<html>d\xe9sol\xe9</html>"
        return answer(method, path, *others)

    monkeypatch.setattr(run.kube, "answer", fail)
    assert keeper._note_launch(job) is None
    assert num_failures == 5
    assert len(run.events("coordinator_lost")) == 1


def test_a_launch_is_not_noted_while_the_store_is_away(
    run: KeptRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise OSError("503 slow down")

    monkeypatch.setattr(run.directory.launcher, "read", fail)
    with pytest.raises(OSError, match="503"):
        run.keeper._note_launch(run.started_job())


def test_a_resumed_run_is_a_new_launch(run: KeptRun) -> None:
    run.begin("node1")
    run.job["status"]["startTime"] = "2026-11-16T10:00:00Z"
    keeper = run.new_keeper()
    assert run.launch(keeper) == 0
    assert len(run.events("launched")) == 2
    assert run.events("coordinator_lost") == []


def test_a_resumed_run_starts_its_coordinator_before_its_workers(run: KeptRun) -> None:
    run.begin("node1")
    run.job["spec"]["suspend"] = True
    keeper, sleep = run.new_keeper(), run.clock.sleep

    def start(seconds: float) -> None:
        sleep(seconds)
        if run.clock.passed > 5.0:
            run.job["spec"]["suspend"] = False
            run.job["status"]["startTime"] = "2026-11-16T10:00:00Z"

    run.clock.sleep = start  # type: ignore[method-assign]
    assert run.launch(keeper) is not None
    assert len(run.events("launched")) == 2
    assert run.events("coordinator_lost") == []


def test_a_coordinator_that_is_lost_while_its_run_stops_is_replaced(run: KeptRun) -> None:
    """Workers save with it."""
    run.begin("node1")
    run.job["spec"]["suspend"] = True
    keeper = run.new_keeper()
    assert run.launch(keeper) is None
    assert run.clock.passed < 20.0
    assert len(run.events("coordinator_lost")) == 1


# The API server


def test_without_the_api_server_nothing_is_done_and_that_is_reported_once(run: KeptRun) -> None:
    names = run.begin("node1", "node2")
    run.kube.is_away = True
    run.look(10 * JOB_SECONDS)
    (said,) = [line for line in run.said if "training continues" in line]
    assert said.startswith("the API server does not answer: ")
    run.kube.is_away = False
    run.look(JOB_SECONDS)
    assert all(run.has_pod(name) for name in names)
    run.kube.is_away = True
    run.look(JOB_SECONDS)
    assert sum("training continues" in line for line in run.said) == 2, "it is away again"


def test_failed_calls_about_pods_are_retried(run: KeptRun) -> None:
    _, second = run.begin("node1", "node2")
    run.kube.failing[f"PATCH {PODS}/{second}"] = 2
    run.end_pod(second, 137, reason="OOMKilled")
    run.look(3 * SETTLED)
    assert run.is_released(second)
    assert run.calls("PATCH", second) == 3
    assert len(run.events("lost")) == 1
    assert sum("etcd is busy" in line for line in run.said) == 2


def test_a_call_that_succeeded_is_not_repeated(run: KeptRun) -> None:
    """The watch may show for a while what was before it."""
    _, second = run.begin("node1", "node2")
    run.end_pod(second, 137, reason="OOMKilled")
    run.sync()
    run.kube.pods.is_held = True
    run.look(3 * SETTLED)
    assert run.calls("PATCH", second) == 1
    assert len(run.events("lost")) == 1


def test_failed_calls_about_jobs_are_retried(run: KeptRun) -> None:
    run.begin("node1")
    run.end_job("Complete")
    run.kube.failing[f"PATCH {coordinator_path('it')}"] = 2
    run.look(JOB_SECONDS)
    assert run.is_kept
    run.look(2 * JOB_SECONDS)
    assert not run.is_kept


def test_a_failed_stop_is_retried(run: KeptRun) -> None:
    run.begin("node1")
    run.kube.failing[f"PATCH {JOBS}/headway-it"] = 1
    fail_often(run, 3)
    assert run.job["spec"]["suspend"]
    assert run.calls("PATCH", "headway-it") == 2
