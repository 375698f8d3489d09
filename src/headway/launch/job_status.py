"""What the workers' Job of a run says about the run, without asking anything else."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

from lightkube.resources.batch_v1 import Job

from headway.kube.client import KubeClient
from headway.kube.gave_back import gave_back
from headway.kube.kueue import queue_of, was_stopped
from headway.kube.names import INSTANCE, LAUNCHING, coordinator_object, labels, run_object
from headway.kube.pod_status import accelerators_of, end_condition

AT_A_TIME = 8
"""Calls to the API server for a list of runs."""
NO_COORDINATOR = (
    "it has no coordinator: lost nodes are not replaced, no budget stops it, and no change of its "
    "workers is possible"
)

JobState = Literal["active", "queued", "waiting", "suspended", "finished", "failed"]


@dataclass(frozen=True)
class ClusterRunStatus:
    """A run, from its Job."""

    name: str
    state: JobState
    """`waiting`: it gave its pods back, and tries again."""
    nodes: int
    ready: int
    """Pods that are ready."""
    why: str | None = None
    """The cause of a failure, the queue it waits in, or when it tries again."""
    accelerators: str | None = None
    """Kind that it has or waits for, if it may have one of several."""
    lacks_coordinator: bool = False
    """Under way, and nobody looks after it."""

    @property
    def is_under_way(self) -> bool:
        """Running, or waiting for its queue or for machines: nobody has to do anything."""
        return self.state in ("active", "queued", "waiting")


def job_status(name: str, job: Job) -> ClusterRunStatus:
    assert job.spec is not None
    end, queue, given = end_condition(job), waiting_queue(job), gave_back(job)
    state: JobState = "suspended" if job.spec.suspend else "active"
    why = None
    if end is not None:
        state = "finished" if end.type == "Complete" else "failed"
        why = (end.message or end.reason) if state == "failed" else None
    elif queue is not None:
        state, why = "queued", f"in queue {queue}"
    elif given is not None:
        state, why = "waiting", given.words
    nodes, kind = job.spec.parallelism or 0, accelerators_of(job)
    return ClusterRunStatus(name, state, nodes, num_ready(job), why, kind)


def num_ready(job: Job) -> int:
    return (job.status.ready or 0) if job.status is not None else 0


def waiting_queue(job: Job) -> str | None:
    """The queue in which it waits to be started."""
    assert job.spec is not None
    return queue_of(job) if job.spec.suspend and not was_stopped(job) else None


def is_launching(job: Job) -> bool:
    """Whether the command that has created it has more to create, or was interrupted before."""
    return launch_mark(job) is not None


def launch_mark(job: Job) -> str | None:
    """The mark of a launch that is not complete (`launch_mark`)."""
    assert job.metadata is not None
    return (job.metadata.annotations or {}).get(LAUNCHING)


def lacks_coordinator(kube: KubeClient, name: str) -> bool:
    """Whether a run is under way without a coordinator, and nobody is just launching it. The Job
    last: whoever ends a run ends its Job before its coordinator."""
    owner = kube.replica_set(coordinator_object(name))
    if owner is not None and (owner.spec is None or owner.spec.replicas != 0):
        return False
    job = kube.job(run_object(name))
    if job is None or job.metadata is None or job.metadata.deletionTimestamp is not None:
        return False
    return not is_launching(job) and job_status(name, job).is_under_way


def cluster_runs(kube: KubeClient) -> list[ClusterRunStatus]:
    """Return all runs of the namespace. It takes a call, and one for each run under way."""

    def completed(run: ClusterRunStatus) -> ClusterRunStatus:
        is_lacking = run.is_under_way and lacks_coordinator(kube, run.name)
        return replace(run, lacks_coordinator=is_lacking)

    found = [job_status(name, job) for name, job in jobs_of_runs(kube)]
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        return list(threads.map(completed, found))


def jobs_of_runs(kube: KubeClient) -> Iterator[tuple[str, Job]]:
    """Name and workers' Job of each run of the namespace."""
    for job in kube.jobs({key: value for key, value in labels("", "worker").items() if value}):
        assert job.metadata is not None
        name = (job.metadata.labels or {}).get(INSTANCE)
        if name:
            yield name, job
