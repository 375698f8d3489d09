"""A run on Kubernetes, from the user's machine: launch, ask, scale, stop, delete. The run does not
depend on this process; each of these is a few calls, whatever the run's size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Event, Pod

from headway.clock import Clock, stamp
from headway.errors import NotFound, RunFailed, StillRunning
from headway.kube.api_errors import (
    ClusterUnreachable,
    Conflict,
    PodForbidden,
    PodUnreachable,
    RequestRefused,
)
from headway.kube.client import KubeClient
from headway.kube.kueue import queue_of, start_job, stop_job
from headway.kube.manifests import owned_by
from headway.kube.names import (
    EVENT_SOURCE,
    HTTP_PORT,
    INDEX,
    QUEUE,
    SUSPECT,
    Object,
    coordinator_object,
    labels,
    run_object,
    selector,
)
from headway.kube.pod_status import (
    creation_time,
    is_own_error,
    pod_name,
    spec_config_map_name,
)
from headway.launch.job_status import (
    ClusterRunStatus,
    is_launching,
    job_status,
    lacks_coordinator,
    launch_mark,
)
from headway.launch.launch_mark import LaunchMark, MarkTaken
from headway.spec.resolve import Resolved

LOOK_SECONDS = 1.0
STOP_SECONDS = 400.0
"""Time for a save, longer than the grace period of pods."""
ASK_AGAIN_SECONDS = (0.6, 1.0, 2.0, 4.0)
"""Retries when the coordinator shows a page from before the end: it caches pages for half a second
or more."""
EXIT_SECONDS = 60.0
"""Time for the pods of a run that has finished to exit: they send their logs first."""
GONE_SECONDS = 150.0
AWAY_SECONDS = 120.0
"""How long an API server that does not answer is retried."""
SETTLED_SECONDS = 60.0
"""Time without a sign of another command's launch after which that was interrupted. A launch shows
itself every 10 s, with calls that take up to 20 s each in between (`launch_mark`)."""
LOOKED_AT = 50
"""Pods that are checked for why they wait: of thousands, the others wait for the same reason."""

Found = TypeVar("Found")


class ClusterRun:
    def __init__(self, kube: KubeClient, name: str, on: str, clock: Clock) -> None:
        self.kube = kube
        self.name = name
        self.on = on
        """Name of the target, for hints."""
        self.clock = clock
        self.unreachable: PodUnreachable | PodForbidden | None = None
        """Why its coordinator could not be asked the last time."""
        self.launched_uid: str | None = None
        """Of the Job that this process has created."""
        self.files: str | None = None
        """Digest of Headway's files in the coordinator's image, once it has answered."""
        self._coordinator = ""

    # Making it

    def launch(self, objects: Sequence[Object]) -> None:
        """The owner first, suspended: workers could take the coordinator's room, and all would
        wait. A queue starts workers by itself. Until all is made, the owner has a mark: of a launch
        that was interrupted it is left, and the next one replaces it. Raises Conflict if the run is
        there already, or another command has taken it meanwhile, and RequestRefused if it is in a
        queue that the target does not name: the coordinator has no rights there."""
        mark = LaunchMark(self.kube, self.name, self.clock)
        workers = mark.marked(objects[0])
        is_queued = QUEUE in workers["metadata"]["labels"]
        if not is_queued:
            workers = workers | {"spec": workers["spec"] | {"suspend": True}}
        made: Job = self.kube.create(workers)
        self.launched_uid = mark.created(made)
        if not is_queued and (queue := queue_of(made)) is not None:
            raise RequestRefused(
                f"the cluster has put run {self.name} into Kueue's queue {queue}, and target "
                f"{self.on} names no queue",
                f"queue: {queue} in target {self.on}",
            )
        try:
            for one in owned_by(objects, self.launched_uid)[1:]:
                mark.create(one)
            mark.take_off({} if is_queued else {"spec": {"suspend": False}})
        except MarkTaken:
            self.launched_uid = None  # whoever has the run now may want it
            raise
        if not is_queued:
            # Its keeper may have given the launch up, if this machine slept meanwhile.
            self.kube.scale_replica_set(coordinator_object(self.name), 1)

    def is_unfinished(self, job: Job) -> bool:
        """Whether the launch that has created it has more to do, or was interrupted before. The
        coordinator is made last, and a queue starts workers by itself: such a run may be training,
        though nobody has taken the mark off."""
        return is_launching(job) and not (queue_of(job) is not None and self.has_coordinator())

    def settled_job(self, say: Callable[[str], None]) -> Job | None:
        """Its Job, once no other command is launching it: one that was interrupted is waited for
        as well, until that is certain. One that works changes its mark."""
        deadline, mark = 0.0, None
        is_said = False
        while (job := self.job()) is not None and self.is_unfinished(job):
            now, before = self.clock.monotonic(), mark
            mark = launch_mark(job)
            if mark != before:
                deadline = now + SETTLED_SECONDS
            elif now > deadline:
                say("it was interrupted: what it has made is deleted")
                return job
            if not is_said:
                is_said = True
                say(
                    f"another command is launching run {self.name}, or was interrupted: waiting "
                    f"until it is done, or has shown nothing for {SETTLED_SECONDS:.0f} s"
                )
            self.clock.sleep(LOOK_SECONDS)
        return job

    def settled_end(self, say: Callable[[str], None]) -> Job | None:
        """Its Job. If the run has finished, once its pods have exited, or have had the time to:
        the run says so seconds before its Job does."""
        job = self.job()
        if job is None or self.job_status(job).state != "active":
            return job
        known = self.known()
        if known is None or known["status"]["state"] != "finished":
            return job
        deadline, said = self.clock.monotonic() + EXIT_SECONDS, False
        while job is not None and self.job_status(job).state == "active":
            if self.clock.monotonic() > deadline:
                break
            if not said:
                said = True
                say(f"run {self.name} has finished: waiting for its pods to exit")
            self.clock.sleep(LOOK_SECONDS)
            job = self.job()
        return job

    def has_coordinator(self) -> bool:
        return self.kube.replica_set(coordinator_object(self.name)) is not None

    # Looking at it

    def job(self) -> Job | None:
        return self.kube.job(run_object(self.name))

    def require_job(self) -> Job:
        job = self.job()
        if job is None:
            raise NotFound(
                f"run {self.name} is not in namespace {self.kube.namespace}",
                f"to list its runs: headway list --on {self.on}",
            )
        return job

    def launched_as(self) -> Resolved | None:
        """The resolved run, from the ConfigMap that its pods mount; None if it has no objects."""
        job = self.job()
        name = spec_config_map_name(job) if job is not None else None
        found = self.kube.config_map(name) if name is not None else None
        if found is None or not found.data:
            return None
        return Resolved.stored(found.data["spec.json"])

    def job_status(self, job: Job) -> ClusterRunStatus:
        return job_status(self.name, job)

    def known(self) -> dict[str, Any] | None:
        """The coordinator's `/status`: status, events, and the loss of a worker that the run has
        not recovered from yet. None while no coordinator answers."""
        answer = self.ask("/status")
        if answer is None:
            return None
        known = dict(json.loads(answer))
        self.files = known.get("files")
        return known

    def ask(self, path: str) -> bytes | None:
        """A page of the coordinator; None if it does not answer."""
        known, self._coordinator, self.unreachable = self._coordinator, "", None
        answer = self._page_of(known, path) if known else None
        if answer is None:
            found = self._find_coordinator()
            if found and found != known:  # it was replaced
                answer = self._page_of(found, path)
        return answer

    def _page_of(self, pod: str, path: str) -> bytes | None:
        try:
            answer = self.kube.request_to_pod(pod, HTTP_PORT, path)
        except (PodUnreachable, PodForbidden) as error:
            self.unreachable = error
            return None
        except (ClusterUnreachable, NotFound):
            return None
        self._coordinator, self.unreachable = pod, None
        return answer

    def _find_coordinator(self) -> str:
        """Name of the coordinator's pod; empty if none runs."""
        running = (
            pod_name(pod)
            for pod in self.coordinators()
            if pod.status is not None
            and pod.status.phase == "Running"
            and pod.metadata is not None
            and pod.metadata.deletionTimestamp is None
        )
        return next(running, "")

    def coordinators(self) -> list[Pod]:
        """The coordinator's pod, and those before it that still exist."""
        return self.kube.cached_pods(selector(self.name, "coordinator"))

    def failed_pods(self) -> list[Pod]:
        """Pods that ended with an error of the run itself, the newest first: others were
        replaced."""
        failed = self.kube.first_pods(
            labels(self.name, "worker"), LOOKED_AT, {"status.phase": "Failed"}
        )
        to_blame = [pod for pod in failed if is_own_error(pod)]
        return sorted(to_blame, key=creation_time, reverse=True)

    def failed_node(self) -> int | None:
        """The node whose pod has failed, if one has."""
        for pod in self.failed_pods():
            assert pod.metadata is not None
            return int((pod.metadata.labels or {}).get(INDEX, 0))
        return None

    def events(self) -> list[dict[str, Any]]:
        """Kubernetes events of what makes its pods, and of pods that wait or have failed."""
        owners = (self.job(), self.kube.replica_set(coordinator_object(self.name)))
        uids = [one.metadata.uid for one in owners if one is not None and one.metadata is not None]
        for phase in ("Pending", "Failed"):
            found = self.kube.first_pods(labels(self.name), LOOKED_AT, {"status.phase": phase})
            uids += [pod.metadata.uid for pod in found if pod.metadata is not None]
        return [
            {
                "time": stamp(_time(event)),
                "event": event.reason or "",
                "about": event.involvedObject.name or "",
                "words": event.message or "",
            }
            for uid in uids
            if uid is not None
            for event in self.kube.events_of(uid)
            if event.reportingComponent != EVENT_SOURCE  # in the journal, too
        ]

    # Changing it

    def scale(self, nodes: int) -> int:
        """One call. Returns the number of nodes before."""
        job = self.require_job()
        shape = self.job_status(job)
        if shape.state != "active":
            raise StillRunning(f"run {self.name} is {shape.state}: there is nothing to scale")
        self.kube.patch_job(
            run_object(self.name), {"spec": {"parallelism": nodes, "completions": nodes}}
        )
        return shape.nodes

    def stop(self, say: Callable[[str], None]) -> int | None:
        """One call. Kubernetes ends the pods, so workers leave one after the other, and the last
        ones save; the coordinator exits after them. Returns the newest saved step, if the
        coordinator still answers."""
        job = self.require_job()
        shape = self.job_status(job)
        if shape.state in ("finished", "failed"):
            raise StillRunning(f"run {self.name} is {shape.state}: there is nothing to stop")
        if shape.is_under_way or is_launching(job):
            stop_job(self.kube, job)
        # The coordinator exits soon after the last of them: ask it while it answers.
        known: dict[str, Any] | None = None

        def have_gone() -> bool:
            nonlocal known
            known = self.known() or known
            if not self._has_no_workers():
                return False
            # The page may have been made before they saved.
            newest = self.known()
            for seconds in ASK_AGAIN_SECONDS:
                if newest is None or newest["status"]["state"] != "running":
                    break
                self.clock.sleep(seconds)
                newest = self.known()
            known = newest or known
            return True

        self._wait_for("its pods to save and exit", have_gone, STOP_SECONDS, say)
        self.patiently(self._delete_markers, say)
        if known is None or known["status"]["state"] == "running":
            return None  # what was heard last is from before the save
        step: int | None = known["status"]["checkpoint_step"]
        return step

    def lacks_coordinator(self) -> bool:
        return lacks_coordinator(self.kube, self.name)

    def put_back(self, objects: Sequence[Object]) -> None:
        """Create those of a run's objects that are gone. The others are left as they are: workers
        have the key that is there."""
        job = self.require_job()
        assert job.metadata is not None
        for one in owned_by(objects, str(job.metadata.uid))[1:]:
            with suppress(Conflict):
                self.kube.create(one)

    def resume(self) -> None:
        """The coordinator first, as at a launch, and again afterwards: if the run was stopped a
        moment ago, its keeper may have ended it in between."""
        job = self.require_job()
        self.kube.scale_replica_set(coordinator_object(self.name), 1)
        if self.job_status(job).state in ("active", "queued"):
            return  # it had lost its coordinator only
        start_job(self.kube, job)
        self.kube.scale_replica_set(coordinator_object(self.name), 1)

    def delete(
        self, say: Callable[[str], None], uid: str | None = None, version: str | None = None
    ) -> bool:
        """Deletes all of its objects, by one call. Returns whether there were any. Raises Conflict
        if its Job is another than the one with `uid`, or has changed since that version."""
        there = self.kube.delete_job(run_object(self.name), uid, version)
        self._wait_for("its objects to be deleted", self._is_gone, GONE_SECONDS, say)
        return there

    def _has_no_workers(self) -> bool:
        """Whether all worker pods have ended."""
        return not any(
            self.kube.first_pods(labels(self.name, "worker"), 1, {"status.phase": phase})
            for phase in ("Pending", "Running")
        )

    def _is_gone(self) -> bool:
        """Whether nothing of it is left."""
        self._delete_markers()
        has_pods = self.kube.first_pods(labels(self.name), 1)
        return not has_pods and self.job() is None and not self.has_coordinator()

    def _delete_markers(self) -> None:
        """Lost pods that mark their machine. The keeper may be lost as well, and with the Job they
        go only when their kubelet answers."""
        for name in self.kube.pods(labels(self.name) | {SUSPECT: "true"}, pod_name)[0]:
            self.kube.delete_pod(name, grace_seconds=0)

    def _wait_for(
        self, what: str, is_so: Callable[[], bool], seconds: float, say: Callable[[str], None]
    ) -> None:
        deadline, said = self.clock.monotonic() + seconds, False
        while not self.patiently(is_so, say):
            if not said:
                said = True
                say(f"waiting for {what}")
            if self.clock.monotonic() > deadline:
                raise RunFailed(
                    f"waited {seconds:.0f} s for {what}",
                    f"kubectl get pods -n {self.kube.namespace}",
                )
            self.clock.sleep(LOOK_SECONDS)

    def patiently(self, look: Callable[[], Found], say: Callable[[str], None]) -> Found:
        """Retries while the API server does not answer."""
        deadline: float | None = None
        while True:
            try:
                return look()
            except ClusterUnreachable as error:
                now = self.clock.monotonic()
                if deadline is None:
                    deadline = now + AWAY_SECONDS
                    say(f"{error.message}; retrying")
                elif now > deadline:
                    raise
                self.clock.sleep(LOOK_SECONDS)


def _time(event: Event) -> float:
    time = event.lastTimestamp or event.eventTime or event.firstTimestamp
    return time.timestamp() if time is not None else 0.0
