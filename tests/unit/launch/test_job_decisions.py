"""What happens to the Job of the workers, and when the keeper ends. No cluster: facts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from lightkube.resources.batch_v1 import Job

from headway.kube.gave_back import GaveBack
from headway.kube.kueue import STOPPED
from headway.kube.names import QUEUE
from headway.launch.job_decisions import (
    EndKeeper,
    EndSuspicions,
    JobFacts,
    JobTracker,
    MendJob,
    NoteBudget,
    NoteFailure,
    NoteLaunch,
    NoteScaling,
    RunFacts,
    StopRun,
    job_facts,
    launch_id,
    noted_launch,
)
from headway.launch.pod_decisions import PodFacts

JOB = JobFacts(2, is_suspended=False, queue=None, was_stopped=False, has_ended=False, failure=None)
POD = PodFacts("it-0-aaaaa", 0, "node1", 0.0, is_gated=False, delete_by=None, has_ended=False)
ENDED = replace(POD, has_ended=True)
RUN = RunFacts(JOB, [POD], has_markers=False, is_hopeless=False, spent_seconds=None)
SUSPENDED = replace(JOB, is_suspended=True)


@pytest.fixture
def tracker() -> JobTracker:
    return JobTracker(budget_seconds=7200.0)


def test_nothing_is_done_to_a_run_that_trains(tracker: JobTracker) -> None:
    assert tracker.look(RUN) == []


def test_scaling_is_noted_once_each_time(tracker: JobTracker) -> None:
    tracker.look(RUN)
    scaled = replace(RUN, job=replace(JOB, nodes=5))
    assert tracker.look(scaled) == [NoteScaling(before=2, nodes=5)]
    assert tracker.look(scaled) == []
    assert tracker.look(RUN) == [NoteScaling(before=5, nodes=2)]


def test_a_hopeless_run_is_stopped(tracker: JobTracker) -> None:
    hopeless = replace(RUN, is_hopeless=True)
    assert tracker.look(hopeless) == [StopRun()]
    assert tracker.look(hopeless) == [StopRun()], "until it is suspended"
    assert tracker.look(replace(hopeless, job=SUSPENDED)) == []


def test_a_run_is_stopped_when_its_budget_is_used_up(tracker: JobTracker) -> None:
    assert tracker.look(replace(RUN, spent_seconds=7199.0)) == []
    assert tracker.look(replace(RUN, spent_seconds=7200.0)) == [NoteBudget(7200.0), StopRun()]
    assert JobTracker(budget_seconds=None).look(replace(RUN, spent_seconds=1e9)) == []


def test_a_run_is_stopped_when_its_money_is_spent() -> None:
    tracker = JobTracker(budget_seconds=None, budget_usd=50.0)
    assert tracker.look(replace(RUN, spent_usd=49.99)) == []
    assert tracker.look(replace(RUN, spent_usd=50.0)) == [NoteBudget(spent_usd=50.0), StopRun()]
    assert JobTracker(budget_seconds=None).look(replace(RUN, spent_usd=1e9)) == []
    assert tracker.look(replace(RUN, job=SUSPENDED, spent_usd=51.0)) == [], "it stops already"


def test_a_stopped_run_ends_the_coordinator_after_its_last_pod(tracker: JobTracker) -> None:
    stopped = replace(RUN, job=SUSPENDED)
    assert tracker.look(stopped) == []
    assert tracker.look(replace(stopped, pods=None)) == [], "pods have not been listed"
    assert tracker.look(replace(stopped, pods=[ENDED])) == [EndKeeper()]


def test_markers_go_before_the_keeper(tracker: JobTracker) -> None:
    marked = replace(RUN, pods=[ENDED], has_markers=True)
    assert tracker.look(marked) == []
    assert tracker.look(replace(marked, job=SUSPENDED)) == [EndSuspicions()]
    assert tracker.look(replace(marked, job=replace(JOB, has_ended=True))) == [EndSuspicions()]
    assert tracker.look(replace(marked, job=None)) == [EndSuspicions(), EndKeeper()]


def test_a_run_suspended_by_its_queue_keeps_its_coordinator(tracker: JobTracker) -> None:
    queued = replace(SUSPENDED, queue="gpus")
    assert tracker.look(replace(RUN, job=queued, pods=[])) == []
    stopped = replace(queued, was_stopped=True)
    assert tracker.look(replace(RUN, job=stopped, pods=[])) == [EndKeeper()]


def test_a_job_that_its_queue_could_not_start_again_is_mended(tracker: JobTracker) -> None:
    """Kueue 0.17, after a change of size: it names the Workload of another start."""
    names = {
        "kueue.x-k8s.io/workload": "job-it-1",
        "kueue.x-k8s.io/workload-slice-name": "job-it-1",
    }
    template = {"metadata": {"annotations": names}}
    queued = {"labels": {QUEUE: "gpus"}}

    def decided(job: Job) -> list[Any]:
        return [*tracker.look(replace(RUN, job=job_facts(job), pods=[]))]

    suspended = {"suspend": True, "template": template}
    assert decided(job_of(metadata=queued, spec=suspended)) == [MendJob()]
    assert decided(job_of(metadata=queued, spec={"suspend": True})) == []
    assert decided(job_of(metadata=queued, spec={"template": template})) == [], "it runs"
    stopped = {**queued, "annotations": {STOPPED: "true"}}
    assert decided(job_of(metadata=stopped, spec=suspended)) == [EndKeeper()]
    started = {"startTime": "2026-11-16T09:00:00Z"}
    assert MendJob() not in decided(job_of(metadata=queued, spec=suspended, status=started))


def test_a_failed_run_names_the_node_that_failed_and_its_last_words(tracker: JobTracker) -> None:
    failed = replace(JOB, has_ended=True, failure="backoff")
    blamed = replace(ENDED, index=3, is_to_blame=True, last_words="KeyError: mine")
    assert tracker.look(replace(RUN, job=failed, pods=[ENDED, blamed])) == [
        NoteFailure(3, "KeyError: mine", "backoff"),
        EndKeeper(),
    ]
    assert tracker.look(replace(RUN, job=failed, pods=None))[0] == NoteFailure(0, None, "backoff")


@pytest.mark.parametrize("job", [None, replace(JOB, has_ended=True)])
def test_the_keeper_ends_with_its_job(tracker: JobTracker, job: JobFacts | None) -> None:
    assert tracker.look(replace(RUN, job=job)) == [EndKeeper()]


def job_of(**parts: dict[str, Any]) -> Job:
    metadata = {"name": "headway-it", "uid": "u1", **parts.get("metadata", {})}
    spec = {"parallelism": 2, "template": {}, **parts.get("spec", {})}
    return cast(
        Job, Job.from_dict({"metadata": metadata, "spec": spec, "status": parts.get("status", {})})
    )


def test_facts_are_read_from_the_job() -> None:
    assert job_facts(job_of()) == JOB
    stopped = job_of(
        metadata={"labels": {QUEUE: "gpus"}, "annotations": {STOPPED: "true"}},
        spec={"suspend": True},
    )
    assert job_facts(stopped) == replace(SUSPENDED, queue="gpus", was_stopped=True)
    over = [{"type": "Complete", "status": "True"}]
    assert job_facts(job_of(status={"conditions": over})) == replace(JOB, has_ended=True)
    failed = [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}]
    assert job_facts(job_of(status={"conditions": failed})).failure == "PodFailurePolicy"


def test_each_start_of_the_workers_is_a_launch() -> None:
    assert launch_id(job_of()) is None
    first = launch_id(job_of(status={"startTime": "2026-11-16T09:00:00Z"}))
    again = launch_id(job_of(status={"startTime": "2026-11-16T10:00:00Z"}))
    assert first is not None
    assert again is not None
    events = [{"event": "launched", "launch": first}, {"event": "lost"}]
    assert noted_launch(events) == first
    assert noted_launch([*events, {"event": "launched", "launch": again}]) == again
    assert noted_launch([{"event": "launched"}]) is None
    assert noted_launch([]) is None


def test_a_start_that_the_keeper_outlived_is_noted_until_that_has_worked(
    tracker: JobTracker,
) -> None:
    tracker.launch = "uid 1"
    assert tracker.look(replace(RUN, job=replace(JOB, launch="uid 1"))) == []
    assert tracker.look(RUN) == [], "it is not known yet when it was started again"
    again = replace(RUN, job=replace(JOB, launch="uid 2"))
    assert tracker.look(again) == [NoteLaunch("uid 2")]
    assert tracker.look(again) == [NoteLaunch("uid 2")]
    tracker.launch = "uid 2"
    assert tracker.look(again) == []


def test_a_run_that_gave_its_pods_back_keeps_its_coordinator(tracker: JobTracker) -> None:
    mark = GaveBack(100.0, 0, 1, 2)
    waiting = replace(RUN, job=replace(SUSPENDED, gave_back=mark), pods=[])
    assert tracker.look(waiting) == []
    stopped = replace(RUN, job=SUSPENDED, pods=[])
    assert tracker.look(stopped) == [EndKeeper()], "somebody took the mark off"


def test_a_resumed_job_is_started_when_kubernetes_says_so() -> None:
    """Until then it has the time of the start before."""
    suspended = [{"type": "Suspended", "status": "True"}]
    status = {"startTime": "2026-11-16T09:00:00Z", "conditions": suspended}
    assert launch_id(job_of(spec={"suspend": True}, status=status)) is not None, "stopped"
    assert launch_id(job_of(spec={"suspend": False}, status=status)) is None
    suspended[0]["status"] = "False"
    assert launch_id(job_of(spec={"suspend": False}, status=status)) is not None
