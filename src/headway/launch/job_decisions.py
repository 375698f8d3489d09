"""What to do about the Job of a run's workers, and when the keeper's own pod ends. Pure: facts in,
decisions out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightkube.resources.batch_v1 import Job

from headway.kube.gave_back import GaveBack, gave_back, has_stale_mark
from headway.kube.kueue import has_stale_template, queue_of, was_stopped
from headway.kube.pod_status import accelerators_of, end_condition
from headway.launch.job_status import num_ready
from headway.launch.pod_decisions import PodFacts


@dataclass(frozen=True)
class JobFacts:
    """What Kubernetes says about the workers' Job."""

    nodes: int
    """Number of pods it should run."""
    is_suspended: bool
    queue: str | None
    """Kueue's queue that it is in."""
    was_stopped: bool
    """In a queue: stopped by a person or by us, not by the queue."""
    has_ended: bool
    failure: str | None
    """Why it has failed, if it has."""
    gave_back: GaveBack | None = None
    """Suspended because it had too few pods; it tries again."""
    launch: str | None = None
    """Names its newest start, as `launch_id` does."""
    has_stale_template: bool = False
    """In a queue, which cannot start it again as it is."""
    accelerators: str | None = None
    """Kind of accelerator that its pods have or wait for, if the run may have one of several."""
    has_stale_mark: bool = False
    """It has the mark of one that gave its pods back, and is not suspended."""
    ready: int = 0
    """Pods that are ready, as it counts them."""

    @property
    def is_stopped(self) -> bool:
        if self.gave_back is not None:
            return False
        return self.is_suspended and (self.queue is None or self.was_stopped)


@dataclass(frozen=True)
class RunFacts:
    """All that is known at a look at the Job."""

    job: JobFacts | None
    """None: it was deleted."""
    pods: Sequence[PodFacts] | None
    """None: not listed yet."""
    has_markers: bool
    """Lost pods are kept to mark their machines."""
    is_hopeless: bool
    """Some node's pods keep failing, and the run makes no step in between."""
    spent_seconds: float | None
    """Time used, if it was read at this look and there is a budget."""
    spent_usd: float | None = None
    """Money spent, if that is counted and known."""
    money_problem: MoneyProblem | None = None


@dataclass(frozen=True)
class MoneyProblem:
    """Why it is not known what a run with a budget has cost, and will not be: it must not go on."""

    reason: str
    hint: str


@dataclass(frozen=True)
class NoteLaunch:
    """The workers were started again while this keeper stayed: by a queue that had suspended them,
    or because they had given their pods back. The next keeper must not take its members for those
    of an earlier launch."""

    launch: str


@dataclass(frozen=True)
class NoteScaling:
    before: int
    nodes: int


@dataclass(frozen=True)
class NoteBudget:
    """One of them is used up."""

    spent_seconds: float | None = None
    spent_usd: float | None = None


@dataclass(frozen=True)
class NoteMoneyProblem:
    problem: MoneyProblem


@dataclass(frozen=True)
class StopRun:
    """Suspend the workers' Job: workers save and leave."""


@dataclass(frozen=True)
class MendJob:
    """See whether its queue has failed to start the Job, and have it try again."""


@dataclass(frozen=True)
class EndSuspicions:
    """Delete all markers: the Job, which they have left, does not, and no kubelet will."""


@dataclass(frozen=True)
class NoteFailure:
    node: int
    last_words: str | None
    why: str


@dataclass(frozen=True)
class EndKeeper:
    """There is nothing to keep, at least until the run is resumed: have Kubernetes end this pod."""


JobDecision = (
    NoteLaunch
    | NoteScaling
    | NoteBudget
    | NoteMoneyProblem
    | StopRun
    | MendJob
    | EndSuspicions
    | NoteFailure
    | EndKeeper
)


@dataclass
class JobTracker:
    """Remembers what earlier looks saw."""

    budget_seconds: float | None
    budget_usd: float | None = None
    nodes: int | None = None
    launch: str | None = None
    """The newest that was noted."""

    def look(self, facts: RunFacts) -> list[JobDecision]:
        """Decisions for this look, in the order in which to carry them out."""
        job = facts.job
        if job is None:
            return [*_without_markers(facts), EndKeeper()]
        made: list[JobDecision] = []
        if job.launch is not None and job.launch != self.launch:
            made.append(NoteLaunch(job.launch))
        if self.nodes is not None and job.nodes != self.nodes:
            made.append(NoteScaling(self.nodes, job.nodes))
        self.nodes = job.nodes
        if job.is_suspended or job.has_ended:
            made += _without_markers(facts)
        if not job.is_suspended:
            made += self._to_stop(facts)
        if job.has_stale_template:
            made.append(MendJob())
        if job.failure is not None:
            made.append(_failure(job.failure, facts.pods or ()))
        # A queue suspends and resumes workers as it likes, and knows nothing of this pod: a run
        # that is suspended by its queue keeps its coordinator.
        has_stopped = job.is_stopped and _is_empty(facts)
        if has_stopped or (job.has_ended and not facts.has_markers):
            made.append(EndKeeper())
        return made

    def _to_stop(self, facts: RunFacts) -> list[JobDecision]:
        if facts.is_hopeless:
            return [StopRun()]
        if _is_used_up(facts.spent_usd, self.budget_usd):
            return [NoteBudget(spent_usd=facts.spent_usd), StopRun()]
        if facts.money_problem is not None:
            return [NoteMoneyProblem(facts.money_problem), StopRun()]
        if _is_used_up(facts.spent_seconds, self.budget_seconds):
            return [NoteBudget(facts.spent_seconds), StopRun()]
        return []


def _is_used_up(spent: float | None, budget: float | None) -> bool:
    return spent is not None and budget is not None and spent >= budget


def job_facts(job: Job) -> JobFacts:
    assert job.spec is not None
    end = end_condition(job)
    has_failed = end is not None and end.type == "Failed"
    return JobFacts(
        nodes=job.spec.parallelism or 0,
        is_suspended=bool(job.spec.suspend),
        queue=queue_of(job),
        was_stopped=was_stopped(job),
        has_ended=end is not None,
        failure=(end.message or end.reason or "no reason given") if end and has_failed else None,
        gave_back=gave_back(job),
        launch=launch_id(job),
        has_stale_template=has_stale_template(job),
        accelerators=accelerators_of(job),
        has_stale_mark=has_stale_mark(job),
        ready=num_ready(job),
    )


def launch_id(job: Job) -> str | None:
    """Names one start of the workers; None: they have not been started. A stopped run that is
    resumed is another launch: it gets another time when it is no longer noted as suspended."""
    assert job.spec is not None
    if job.status is None or job.status.startTime is None:
        return None
    conditions = {one.type: one.status for one in job.status.conditions or ()}
    if not job.spec.suspend and conditions.get("Suspended") == "True":
        return None
    assert job.metadata is not None
    return f"{job.metadata.uid} {job.status.startTime}"


def noted_launch(events: Iterable[Mapping[str, Any]]) -> str | None:
    """The newest in the launcher's journal. If it is that of the Job, the run continues, and only
    the coordinator's pod is new."""
    launched = [event.get("launch") for event in events if event["event"] == "launched"]
    return launched[-1] if launched else None


def _without_markers(facts: RunFacts) -> list[JobDecision]:
    return [EndSuspicions()] if facts.has_markers else []


def _is_empty(facts: RunFacts) -> bool:
    """Whether nothing is left to wait for."""
    if facts.pods is None or facts.has_markers:
        return False
    return all(pod.has_ended for pod in facts.pods)


def _failure(why: str, pods: Sequence[PodFacts]) -> NoteFailure:
    """Of the node whose pod failed by an error of the run itself, if there is one."""
    failed = next((pod for pod in pods if pod.is_to_blame), None)
    return (
        NoteFailure(0, None, why)
        if failed is None
        else NoteFailure(failed.index, failed.last_words, why)
    )
