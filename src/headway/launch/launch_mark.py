"""The mark on the Job of a run that is being launched. It says that its launch has more to create,
and changes as long as that launch works: a mark that stays as it is was left by one that was
interrupted. Whoever takes the mark off, or deletes the Job with it, has the run."""

from __future__ import annotations

from typing import Any

from lightkube.resources.batch_v1 import Job

from headway.clock import Clock, stamp
from headway.kube.api_errors import Conflict, RequestRefused
from headway.kube.client import KubeClient
from headway.kube.names import LAUNCHING, Object, run_object

MARK_SECONDS = 10.0
"""Interval between two signs of a launch that works. Between them lie three calls at most."""
LEFTOVER_SECONDS = 60.0
"""Time for Kubernetes to delete what a Job owned, once that Job is gone."""
LOOK_SECONDS = 1.0


class MarkTaken(Conflict):
    """Another command has the run now: this launch creates and deletes nothing more."""


class LaunchMark:
    def __init__(self, kube: KubeClient, run: str, clock: Clock) -> None:
        self._kube = kube
        self._run = run
        self._clock = clock
        self._uid: str | None = None
        self._shown_at = clock.now()
        self._value = stamp(self._shown_at)

    def marked(self, workers: Object) -> Object:
        """Return the Job as its launch creates it."""
        annotations = workers["metadata"].get("annotations", {}) | {LAUNCHING: self._value}
        return workers | {"metadata": workers["metadata"] | {"annotations": annotations}}

    def created(self, job: Job) -> str:
        """Return the uid of the Job that this launch has created."""
        assert job.metadata is not None
        self._uid = str(job.metadata.uid)
        return self._uid

    def create(self, manifest: Object) -> None:
        """Create an object that the Job owns. One that exists is never changed: it may be of a
        launch that has the run now."""
        deadline = self._clock.monotonic() + LEFTOVER_SECONDS
        while True:
            # The time of day passes while a laptop sleeps.
            if not 0.0 <= self._clock.now() - self._shown_at < MARK_SECONDS:
                self._show()
            try:
                self._kube.create(manifest)
                return
            except Conflict:
                self._show()
                if self._clock.monotonic() > deadline:
                    raise self._not_ours(manifest) from None
                self._clock.sleep(LOOK_SECONDS)

    def take_off(self, start: Object) -> None:
        """Everything is created. `start`: the change that starts the workers."""
        self._change({"annotations": {LAUNCHING: None}}, start)

    def _show(self) -> None:
        """Show that this launch works, and that nobody else has the run."""
        now = self._clock.now()
        self._change({"annotations": {LAUNCHING: stamp(now)}}, {})
        self._shown_at, self._value = now, stamp(now)

    def _change(self, metadata: dict[str, Any], more: Object) -> None:
        """Patch the Job as it was read with our mark on it. Kubernetes writes its status meanwhile,
        so a conflict alone does not say that somebody else has the run."""
        while True:
            job = self._kube.job(run_object(self._run))
            found = job.metadata if job is not None else None
            if found is None or found.uid != self._uid:
                raise self._taken()
            if (found.annotations or {}).get(LAUNCHING) != self._value:
                raise self._taken()
            guard = {"uid": self._uid, "resourceVersion": found.resourceVersion}
            try:
                self._kube.patch_job(run_object(self._run), {"metadata": guard | metadata} | more)
                return
            except Conflict:
                continue

    def _taken(self) -> MarkTaken:
        return MarkTaken(
            f"run {self._run} was stopped, deleted or launched anew while this command launched it"
        )

    def _not_ours(self, manifest: Object) -> RequestRefused:
        kind, name, namespace = manifest["kind"], manifest["metadata"]["name"], self._kube.namespace
        return RequestRefused(
            f"namespace {namespace} has a {kind} {name} that this launch has not made",
            f"if nothing needs it: kubectl delete {kind.lower()} {name} -n {namespace}",
        )
