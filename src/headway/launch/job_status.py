"""What the workers' Job of a run says about the run, without asking anything else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from lightkube.resources.batch_v1 import Job

from headway.kube.client import KubeClient
from headway.kube.gave_back import gave_back
from headway.kube.kueue import queue_of, was_stopped
from headway.kube.names import INSTANCE, LAUNCHING, labels
from headway.kube.pod_status import accelerators_of, end_condition

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
    assert job.metadata is not None
    return LAUNCHING in (job.metadata.annotations or {})


def cluster_runs(kube: KubeClient) -> Iterator[ClusterRunStatus]:
    """All runs of the namespace."""
    for name, job in jobs_of_runs(kube):
        yield job_status(name, job)


def jobs_of_runs(kube: KubeClient) -> Iterator[tuple[str, Job]]:
    """Name and workers' Job of each run of the namespace."""
    for job in kube.jobs({key: value for key, value in labels("", "worker").items() if value}):
        assert job.metadata is not None
        name = (job.metadata.labels or {}).get(INSTANCE)
        if name:
            yield name, job
