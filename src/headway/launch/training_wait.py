"""Waits until a run on a cluster is training, and says meanwhile what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from lightkube.resources.apps_v1 import ReplicaSet
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

from headway.errors import Exit, HeadwayError, RunFailed, without_hint
from headway.kube.gave_back import gave_back
from headway.kube.kueue import num_ahead
from headway.kube.names import (
    HTTP_PORT,
    SESSION_PORT,
    Component,
    coordinator_object,
    labels,
)
from headway.kube.pod_status import (
    WaitReason,
    end_condition,
    is_ready,
    termination_message,
)
from headway.launch.cluster_run import LOOK_SECONDS, LOOKED_AT, ClusterRun
from headway.launch.job_status import num_ready, waiting_queue
from headway.launch.lasting import Lasting
from headway.launch.pod_waits import pod_waits

HOPELESS_SECONDS = 10.0
"""An image that cannot be pulled is retried once or twice before the run fails."""
SILENT_SECONDS = 60.0
"""A coordinator that is ready answers at once, if anything reaches it."""
SCRIPT_SECONDS = 20.0
"""A script has run for that long without an error: its imports, and most typing errors with them,
are over. One that tells of a step is not waited for."""


class PagesUnreachable(HeadwayError):
    """The run is on the cluster, and cannot be watched from here."""

    exit_code = Exit.STILL_RUNNING


class NotYetTraining(RunFailed):
    """The time for the wait is over. Nothing is known that would keep the run from training."""


def status_when_training(
    run: ClusterRun, say: Callable[[str], None], until: float = inf
) -> dict[str, Any]:
    """Its status once a step is committed, or a script has run for a while, or it has finished or
    was stopped. Raises RunFailed if something blocks it that will not go away by itself,
    PagesUnreachable if it cannot be watched, and NotYetTraining at `until`."""
    hopeless, silent, script = Lasting(), Lasting(), Lasting()
    said = ""
    while True:
        began = run.clock.monotonic()
        status, job, reasons, loss = run.patiently(lambda: _seen(run, script), say)
        if job is None:
            return status or {}
        words = "; ".join(_counted(reason) for reason in reasons) or _stage(status, job)
        if loss:
            words = f"{loss}; {words}"
        if words != said:
            said = words
            say(words)
        # Where some pods are up, others may be on machines that have trouble of their own.
        is_hopeless = any(reason.is_hopeless for reason in reasons) and not (
            status is not None and num_ready(job)
        )
        now = run.clock.monotonic()
        if hopeless.seconds(is_hopeless, now, now) > HOPELESS_SECONDS:
            raise RunFailed(reasons[0].words, reasons[0].hint)
        is_silent = run.unreachable is not None and _has_ready_coordinator(run)
        if silent.seconds(is_silent, began, now) >= SILENT_SECONDS:
            raise _pages_unreachable(run, job)
        if now > until:
            raise NotYetTraining(words, reasons[0].hint if reasons else network_hint(run))
        run.clock.sleep(LOOK_SECONDS)


def network_hint(run: ClusterRun) -> str:
    """A fix for pods that are all up, and do not meet."""
    return (
        f"kubectl get networkpolicies -n {run.kube.namespace}; and open port 53 for names, TCP "
        f"ports {SESSION_PORT} and {HTTP_PORT} of the coordinator, and all TCP ports between "
        "workers on different machines, in both directions: security group, firewall"
    )


def _has_ready_coordinator(run: ClusterRun) -> bool:
    return any(is_ready(pod) for pod in run.coordinators())


def _pages_unreachable(run: ClusterRun, job: Job) -> PagesUnreachable:
    assert run.unreachable is not None
    shape = run.job_status(job)
    return PagesUnreachable(
        f"run {run.name} continues ({shape.ready} of {shape.nodes} pods are ready), but "
        f"cannot be watched from here: {run.unreachable.message}",
        run.unreachable.hint
        or f"make this work first: kubectl port-forward -n {run.kube.namespace} "
        f"replicaset/{coordinator_object(run.name)} {HTTP_PORT}",
    )


def _seen(
    run: ClusterRun, script: Lasting
) -> tuple[dict[str, Any] | None, Job | None, list[WaitReason], str | None]:
    """Its status; and until it trains, its Job and what blocks it. `script`: since when one
    runs."""
    known = run.known()
    status = known["status"] if known is not None else None
    if status is not None and _trains(status, script, run.clock.monotonic()):
        return status, None, [], None
    job = run.require_job()
    has_finished = _has_finished(run, job)
    if status is not None and status["state"] == "failed":
        hint = status.get("failure_hint") or f"headway logs {run.name}"
        raise RunFailed(status["failure"], hint)
    if has_finished or run.job_status(job).state == "suspended":
        return status, None, [], None
    loss = known.get("loss") if known is not None else None
    return status, job, reasons_to_wait(run, job, is_kept=status is not None), loss


def _trains(status: dict[str, Any], script: Lasting, now: float) -> bool:
    """A script need not tell of its steps."""
    is_running = status["state"] == "running"
    seconds = script.seconds(is_running and _is_script(status), now, now)
    return is_running and (status["step"] > 0 or seconds >= SCRIPT_SECONDS)


def _is_script(status: dict[str, Any]) -> bool:
    """Coordinators of before this version know no scripts."""
    return bool(status.get("is_script"))


def reasons_to_wait(run: ClusterRun, job: Job, is_kept: bool) -> list[WaitReason]:
    """Why pods do not run. `is_kept`: the coordinator runs, and is not checked; nor are workers
    if all are ready: to find those that wait, the API server reads all of them."""
    assert job.spec is not None
    if (queue := waiting_queue(job)) is not None:
        return [WaitReason(_in_queue(run, queue, job), 1)]
    if (given := gave_back(job)) is not None:
        return [WaitReason(given.words, 1)]
    found = [] if is_kept else _reasons_of_coordinator(run)
    if run.unreachable is not None:
        found.append(WaitReason(f"coordinator: {run.unreachable.message}", 1))
    if num_ready(job) < (job.spec.parallelism or 0):
        waits = {"status.phase": "Pending"}
        pods = run.kube.first_pods(labels(run.name, "worker"), LOOKED_AT, waits)
        found += _waiting(run, job, "worker", pods, num_ready(job))
    return sorted(found, key=lambda each: not each.is_hopeless)


def _in_queue(run: ClusterRun, queue: str, job: Job) -> str:
    place = num_ahead(run.kube, job, queue)
    if place is None:
        return f"in queue {queue}"
    return f"in queue {queue}, {f'behind {place} others' if place else 'the next one'}"


def _reasons_of_coordinator(run: ClusterRun) -> list[WaitReason]:
    owner = run.kube.replica_set(coordinator_object(run.name))
    if owner is None:
        return []
    # One that crashes is running, for Kubernetes.
    return _waiting(run, owner, "coordinator", run.coordinators())


def _waiting(
    run: ClusterRun,
    owner: Job | ReplicaSet,
    component: Component,
    pods: Sequence[Pod],
    others_ready: int = 0,
) -> list[WaitReason]:
    return [
        replace(each, words=f"{component}: {each.words}")
        for each in pod_waits(run.kube, owner, pods, others_ready)
    ]


def _has_finished(run: ClusterRun, job: Job) -> bool:
    end = end_condition(job)
    if end is not None and end.type == "Failed":
        raise _why_it_failed(run, end.message or end.reason or "no reason given")
    return end is not None


def _why_it_failed(run: ClusterRun, message: str) -> RunFailed:
    """By the termination message of a pod that failed, if it still exists."""
    left = next((said for pod in run.failed_pods() if (said := termination_message(pod))), "")
    words, hint = without_hint(left)
    return RunFailed(f"{words}\n{message}" if words else message, hint)


def _counted(reason: WaitReason) -> str:
    return f"{reason.words} ({reason.pods} pods)" if reason.pods > 1 else reason.words


def _stage(status: dict[str, Any] | None, job: Job) -> str:
    assert job.spec is not None
    up = f"{num_ready(job)} of {job.spec.parallelism} pods are ready"
    if status is None:
        return f"{up}; the coordinator is starting"
    if _is_script(status) and status["state"] == "running":
        return f"{up}; the script has started"
    return f"{up}; workers are starting"
