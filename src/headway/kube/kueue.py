"""Jobs in a queue of Kueue, which suspends and starts them: it restarts a Job that something else
suspends. To stop one, deactivate the Workload that Kueue made for it; an annotation on the Job
distinguishes one that was stopped from one that waits."""

from __future__ import annotations

from collections.abc import Iterator

from lightkube.resources.batch_v1 import Job

from headway.errors import NotFound
from headway.kube.api_errors import ClusterUnreachable, RequestRefused
from headway.kube.client import KubeClient
from headway.kube.names import GAVE_BACK, LAUNCHING, QUEUE, Object

JOB = "kueue.x-k8s.io/job-uid"
"""Label of a Workload. With a Job's size changed there are several of them, most of them over."""
STOPPED = "headway/stopped"
"""Annotation of ours."""
WORKLOAD_NAMES = ("kueue.x-k8s.io/workload", "kueue.x-k8s.io/workload-slice-name")
"""Annotations that Kueue writes into the pod template of a Job that it starts."""
VERSIONS = ("v1beta2", "v1beta1")
MOST = 100


def local_queue_paths(namespace: str, queue: str) -> list[str]:
    """Of a LocalQueue, newest version first: an older Kueue serves only the other."""
    where = f"namespaces/{namespace}/localqueues/{queue}"
    return [f"apis/kueue.x-k8s.io/{version}/{where}" for version in VERSIONS]


def queue_of(job: Job) -> str | None:
    assert job.metadata is not None
    return (job.metadata.labels or {}).get(QUEUE)


def was_stopped(job: Job) -> bool:
    """Whether a Job in a queue was stopped by `stop_job`."""
    assert job.metadata is not None
    return STOPPED in (job.metadata.annotations or {})


def has_stale_template(job: Job) -> bool:
    """Whether a Job that waits in a queue, and was not stopped, names the Workload of an earlier
    start in its pods' template, as Kueue leaves it if the size of the Job was changed since."""
    assert job.spec is not None
    was_started = job.status is not None and job.status.startTime is not None
    if queue_of(job) is None or not job.spec.suspend or was_started or was_stopped(job):
        return False
    template = job.spec.template.metadata
    annotations = (template.annotations if template is not None else None) or {}
    return any(name in annotations for name in WORKLOAD_NAMES)


def mend_job(kube: KubeClient, job: Job) -> None:
    """Has Kueue start a Job with a stale template that it could not start: it admits the Job, finds
    the name of another Workload in the template, marks its own as finished (FailedToStart) and does
    not try again. For a Job that was changed it makes another Workload. Seen with 0.17.0.

    Not earlier: as long as the Job is evicted, Kueue puts the name back."""
    assert job.metadata is not None
    assert job.metadata.name is not None
    if has_stale_template(job) and not any(_workloads(kube, job)):
        off = {"metadata": {"annotations": dict.fromkeys(WORKLOAD_NAMES)}}
        kube.patch_job(job.metadata.name, {"spec": {"template": off}})


def stop_job(kube: KubeClient, job: Job) -> None:
    """Ends its pods, in a queue or not."""
    _set_active(kube, job, False)


def start_job(kube: KubeClient, job: Job) -> None:
    """Starts a stopped Job; one in a queue waits there."""
    _set_active(kube, job, True)


def num_ahead(kube: KubeClient, job: Job, queue: str) -> int | None:
    """Number of Workloads that Kueue considers first, in all queues of the cluster queue. None if
    Kueue does not tell, or not us, or its server for this does not answer."""
    path = f"namespaces/{kube.namespace}/localqueues/{queue}/pendingworkloads"
    for version in VERSIONS:
        try:
            found = kube.call("GET", f"apis/visibility.kueue.x-k8s.io/{version}/{path}")
        except (NotFound, RequestRefused, ClusterUnreachable):
            continue
        for one in found["items"]:
            owners = one["metadata"].get("ownerReferences", ())
            if any(owner["uid"] == _uid(job) for owner in owners):
                return int(one["positionInClusterQueue"])
    return None


def _set_active(kube: KubeClient, job: Job, is_going: bool) -> None:
    assert job.metadata is not None
    assert job.metadata.name is not None
    if queue_of(job) is None:
        # Whoever stops or starts it decides; the coordinator does not start it again by itself.
        mark_off = {"annotations": {GAVE_BACK: None, LAUNCHING: None}}
        kube.patch_job(job.metadata.name, {"metadata": mark_off, "spec": {"suspend": not is_going}})
        return
    mark = {STOPPED: None if is_going else "true", LAUNCHING: None}
    kube.patch_job(job.metadata.name, {"metadata": {"annotations": mark}})
    workloads = [*_workloads(kube, job)]
    for path in workloads:
        kube.call("PATCH", path, {"spec": {"active": is_going}})
    if not workloads:  # there is no Kueue, or it has not seen the Job
        kube.suspend_job(job.metadata.name, suspended=not is_going)


def _workloads(kube: KubeClient, job: Job) -> Iterator[str]:
    """Paths of its Workloads that have not finished."""
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
