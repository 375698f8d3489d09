"""How long the objects of a run stay that is over. Kubernetes deletes those of a Job that has ended
after the time in it; of a run that is stopped nobody is left to do so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from lightkube.resources.batch_v1 import Job

from headway.kube.client import KubeClient
from headway.kube.names import KEEP_FAILED, KEEP_STOPPED, run_object
from headway.launch.job_status import job_status, jobs_of_runs

MOST_SECONDS = 2**31 - 1
"""That Kubernetes keeps a Job for."""


@dataclass(frozen=True)
class StoppedRun:
    name: str
    uid: str
    """Of its Job: one that was launched anew is another."""
    since: float
    """When it was stopped, in seconds since 1970."""


def keep_failed(kube: KubeClient, job: Job) -> None:
    """Lets the Job of a run that has failed stay as long as its target says; if somebody has edited
    that, and it is no such number, until somebody deletes it."""
    assert job.metadata is not None
    assert job.spec is not None
    kept = (job.metadata.annotations or {}).get(KEEP_FAILED)
    if kept is None:
        return
    seconds = int(kept) if kept.isdecimal() and int(kept) <= MOST_SECONDS else None
    if job.spec.ttlSecondsAfterFinished != seconds:
        patch = {"spec": {"ttlSecondsAfterFinished": seconds}}
        kube.patch_job(str(job.metadata.name), patch)


def runs_to_clean_up(kube: KubeClient, seconds: float, now: float) -> Iterator[StoppedRun]:
    """Runs of the namespace that were stopped longer ago than their targets say. `seconds`: for
    those whose Job does not have it, from before Headway noted it there."""
    for name, job in jobs_of_runs(kube):
        since = _stopped_at(name, job)
        if since is not None and now - since > _kept_seconds(job, seconds):
            assert job.metadata is not None
            yield StoppedRun(name, str(job.metadata.uid), since)


def still_stopped(kube: KubeClient, run: StoppedRun) -> Job | None:
    """Its Job; None if the run was resumed since, or launched anew, also if it was stopped
    again."""
    job = kube.job(run_object(run.name))
    if job is None or job.metadata is None or job.metadata.uid != run.uid:
        return None
    return job if _stopped_at(run.name, job) == run.since else None


def _kept_seconds(job: Job, otherwise: float) -> float:
    """If somebody has edited it, and it is no number: for ever."""
    assert job.metadata is not None
    try:
        return float((job.metadata.annotations or {}).get(KEEP_STOPPED, otherwise))
    except ValueError:
        return inf


def _stopped_at(name: str, job: Job) -> float | None:
    """None: it is not stopped, or Kubernetes has not noted it yet."""
    if job_status(name, job).state != "suspended" or job.status is None:
        return None
    for condition in job.status.conditions or ():
        if condition.type == "Suspended" and condition.status == "True":
            time = condition.lastTransitionTime
            return time.timestamp() if time is not None else None
    return None
