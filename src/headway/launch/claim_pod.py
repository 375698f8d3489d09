"""The pod that serves a claim, as long as it is needed."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

from headway.clock import Clock
from headway.errors import HeadwayError, NotFound, RunFailed
from headway.kube.claim import Taken
from headway.kube.client import Conflict, Kube
from headway.kube.manifests import owned_by
from headway.kube.names import HTTP_PORT, labels, run_object
from headway.kube.storage_job import storage_objects
from headway.kube.views import waiting
from headway.launch.serving import KEY_HEADER
from headway.member.keys import new_key
from headway.spec.target import Target

START_SECONDS = 120.0
LOOK_SECONDS = 0.3


class ClaimPod:
    def __init__(
        self, kube: Kube, target: Target, clock: Clock, say: Callable[[str], None]
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._say = say
        self._session = uuid4().hex[:8]
        self._key = new_key()
        self._objects = storage_objects(self._session, target, self._key)
        self._pod = ""

    def start(self) -> ClaimPod:
        made = self._kube.apply(self._objects[0])
        atexit.register(self.end)
        for one in owned_by(self._objects, made.metadata.uid)[1:]:
            self._kube.apply(one)
        self._wait()
        return self

    def end(self) -> None:
        atexit.unregister(self.end)
        with suppress(HeadwayError):  # it ends by itself, hours later
            self._kube.delete_job(run_object(f"storage-{self._session}"))

    def ask(self, path: str, method: str, content: bytes | None, headers: dict[str, str]) -> bytes:
        try:
            return self._kube.ask_pod(
                self._pod, HTTP_PORT, path, method, content, {**headers, KEY_HEADER: self._key}
            )
        except Conflict as error:
            raise Taken(error.message) from None

    def _wait(self) -> None:
        deadline, said = self._clock.monotonic() + START_SECONDS, ""
        name = run_object(f"storage-{self._session}")
        while True:
            pods = self._kube.first_pods(labels(f"storage-{self._session}", "storage"), most=3)
            for pod in pods:
                conditions = (pod.status.conditions if pod.status else None) or ()
                if any(one.type == "Ready" and one.status == "True" for one in conditions):
                    assert pod.metadata is not None
                    assert pod.metadata.name is not None
                    self._pod = pod.metadata.name
                    return
            job = self._kube.job(name)
            if job is None:
                raise NotFound(f"Job {name} was deleted")
            assert job.metadata is not None
            assert job.metadata.uid is not None
            reasons = waiting(job, pods, self._kube.events_of(job.metadata.uid))
            words = reasons[0].words if reasons else "starting"
            if words != said:
                said = words
                self._say(f"a pod that serves the claim: {words}")
            is_hopeless = bool(reasons) and reasons[0].is_hopeless
            if is_hopeless or self._clock.monotonic() > deadline:
                self.end()
                raise RunFailed(f"the pod that serves the claim did not start: {words}")
            self._clock.sleep(LOOK_SECONDS)
