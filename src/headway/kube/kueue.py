"""Jobs in a queue of Kueue, which suspends and starts them: a Job that somebody else suspends it
starts again at once. Whoever wants one to stop tells Kueue so, by the Workload that it has made for
the Job; a mark on the Job tells one that was stopped from one that waits."""

from __future__ import annotations

from collections.abc import Iterator

from lightkube.resources.batch_v1 import Job

from headway.errors import NotFound
from headway.kube.client import Kube, Refused
from headway.kube.names import QUEUE, Object

JOB = "kueue.x-k8s.io/job-uid"
"""Label of a Workload. With a Job's size changed there are several of them, most of them over."""
STOPPED = "headway/stopped"
"""Annotation of ours."""
VERSIONS = ("v1beta2", "v1beta1")
MOST = 100


def queue_of(job: Job) -> str | None:
    assert job.metadata is not None
    return (job.metadata.labels or {}).get(QUEUE)


def was_stopped(job: Job) -> bool:
    """Of one in a queue."""
    assert job.metadata is not None
    return STOPPED in (job.metadata.annotations or {})


def stop_job(kube: Kube, job: Job) -> None:
    """Its pods are told to go. In a queue or not."""
    _set_going(kube, job, False)


def start_job(kube: Kube, job: Job) -> None:
    """One that was stopped; in a queue, it waits there."""
    _set_going(kube, job, True)


def ahead(kube: Kube, job: Job, queue: str) -> int | None:
    """How many Kueue looks at before it, of all queues that share the same machines. None if it
    does not say so, or not to us."""
    path = f"namespaces/{kube.namespace}/localqueues/{queue}/pendingworkloads"
    for version in VERSIONS:
        try:
            found = kube.call("GET", f"apis/visibility.kueue.x-k8s.io/{version}/{path}")
        except (NotFound, Refused):
            continue
        for one in found["items"]:
            owners = one["metadata"].get("ownerReferences", ())
            if any(owner["uid"] == _uid(job) for owner in owners):
                return int(one["positionInClusterQueue"])
    return None


def _set_going(kube: Kube, job: Job, is_going: bool) -> None:
    assert job.metadata is not None
    assert job.metadata.name is not None
    if queue_of(job) is None:
        kube.suspend_job(job.metadata.name, suspended=not is_going)
        return
    mark = {STOPPED: None if is_going else "true"}
    kube.patch_job(job.metadata.name, {"metadata": {"annotations": mark}})
    workloads = [*_workloads(kube, job)]
    for path in workloads:
        kube.call("PATCH", path, {"spec": {"active": is_going}})
    if not workloads:  # there is no Kueue, or it has not seen the Job
        kube.suspend_job(job.metadata.name, suspended=not is_going)


def _workloads(kube: Kube, job: Job) -> Iterator[str]:
    """Where those are that are not over."""
    for version in VERSIONS:
        path = f"apis/kueue.x-k8s.io/{version}/namespaces/{kube.namespace}/workloads"
        try:
            found = kube.call("GET", f"{path}?labelSelector={JOB}%3D{_uid(job)}&limit={MOST}")
        except NotFound:
            continue
        for workload in found["items"]:
            if not _is_over(workload):
                yield f"{path}/{workload['metadata']['name']}"
        return


def _is_over(workload: Object) -> bool:
    conditions = workload.get("status", {}).get("conditions", ())
    return any(one["type"] == "Finished" and one["status"] == "True" for one in conditions)


def _uid(job: Job) -> str:
    assert job.metadata is not None
    assert job.metadata.uid is not None
    return job.metadata.uid
