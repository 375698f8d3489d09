"""The mark on the Job of a run that gave its pods back: it had fewer than it needs for too long,
and others may need them. The Job is suspended, and its coordinator starts it again at the time that
the mark names; a suspended Job without it was stopped by somebody."""

from __future__ import annotations

from dataclasses import dataclass

from lightkube.resources.batch_v1 import Job

from headway.clock import stamp
from headway.kube.api_errors import Conflict, RequestRefused
from headway.kube.client import KubeClient
from headway.kube.kinds import KindTerms, with_kind
from headway.kube.names import GAVE_BACK, Object
from headway.kube.pod_status import accelerators_of


@dataclass(frozen=True)
class GaveBack:
    retry_at: float
    """When the run tries again, in seconds since 1970."""
    attempt: int
    """How often in a row it has paused, with this time."""
    held: int
    """Nodes that it had..."""
    needed: int
    """... and the fewest that it trains with."""
    stuck: int = 0
    """Of those that it had, the ones whose pods did not start..."""
    why: str = ""
    """... and most often why."""

    def __str__(self) -> str:
        stuck = f" {self.stuck} {self.why}" if self.stuck else ""
        return f"{self.retry_at:.0f} {self.attempt} {self.held} {self.needed}{stuck}"

    @property
    def words(self) -> str:
        again = stamp(self.retry_at)[:19].replace("T", " ")
        return f"{self.shortage}: gave its pods back, tries again at {again} UTC"

    @property
    def shortage(self) -> str:
        stuck = f" ({self.stuck} more did not start: {self.why})" if self.stuck else ""
        return f"had {self.held - self.stuck} of the {self.needed} nodes that it needs{stuck}"


UNREADABLE = GaveBack(retry_at=0.0, attempt=0, held=0, needed=0)
"""Of a mark that somebody has edited: it tries again at once."""


def gave_back(job: Job) -> GaveBack | None:
    """Of a Job that is suspended for it."""
    assert job.metadata is not None
    assert job.spec is not None
    mark = (job.metadata.annotations or {}).get(GAVE_BACK)
    if mark is None or not job.spec.suspend:
        return None
    try:
        retry_at, attempt, held, needed, stuck, why = (*mark.split(maxsplit=5), "0", "")[:6]
        return GaveBack(float(retry_at), int(attempt), int(held), int(needed), int(stuck), why)
    except ValueError:
        return UNREADABLE


def has_stale_mark(job: Job) -> bool:
    """Of a Job that was started, and not by `patch_of_mark`."""
    assert job.metadata is not None
    assert job.spec is not None
    return GAVE_BACK in (job.metadata.annotations or {}) and not job.spec.suspend


def patch_of_mark(job: Job, mark: GaveBack | None) -> Object:
    """Suspends the Job with a mark, or starts it without. Refused if the Job has changed since it
    was read: somebody may have stopped it."""
    assert job.metadata is not None
    annotations = {GAVE_BACK: None if mark is None else str(mark)}
    return {
        "metadata": {
            "resourceVersion": job.metadata.resourceVersion,
            "annotations": annotations,
        },
        "spec": {"suspend": mark is not None},
    }


def start_again(kube: KubeClient, job: Job, kind: KindTerms | None) -> RequestRefused | None:
    """Takes the mark off. `kind`: of accelerator, for all pods from now on. Returns why it may not
    be changed, if so: the Job is started with the one that it had."""
    assert job.metadata is not None
    start, refusal = patch_of_mark(job, None), None
    if kind is not None and kind.name != accelerators_of(job):
        # Only a Job that has not been started may have other pods. In two calls: the status is
        # an object of its own. Each is refused if somebody has changed the Job.
        try:
            start = with_kind(patch_of_mark(kube.forget_start(job), None), kind)
        except Conflict:
            raise
        except RequestRefused as error:
            refusal = error
    kube.patch_job(str(job.metadata.name), start)
    return refusal
