"""The pod that serves a claim while it is needed."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import uuid4

from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

from headway.clock import Clock
from headway.errors import Exit, HeadwayError, NotFound, RunFailed, without_hint
from headway.kube.api_errors import ClusterUnreachable, Conflict, Forbidden, RequestRefused
from headway.kube.claim_files import ClaimFileExists
from headway.kube.claim_job import storage_objects
from headway.kube.client import KubeClient
from headway.kube.manifests import owned_by
from headway.kube.names import HTTP_PORT, labels, run_object
from headway.kube.pod_status import end_condition, exit_code, is_ready, termination_message
from headway.kube.wrong_architecture import wrong_architecture
from headway.launch.claim_server import KEY_HEADER
from headway.launch.pod_waits import pod_waits
from headway.member.protocol.keys import new_key
from headway.spec.target_file import Target

START_SECONDS = 900.0
"""Time limit for starting: pulling an image with torch takes minutes on a slow network."""
ANSWER_SECONDS, ASK_AGAIN_SECONDS = 60.0, 2.0
"""Time limit for the first answer of a pod that is ready, and pause between two attempts."""
LOOK_SECONDS, LOOK_SHARE = 0.3, 0.05
"""Pause between two polls, which take three calls each; in a long wait, this share of it."""


class ClaimPod:
    def __init__(
        self,
        kube: KubeClient,
        target: Target,
        clock: Clock,
        say: Callable[[str], None],
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._kube = kube
        assert target.storage is not None
        self._claim = target.storage.claim
        self._user, self._group = target.pod.user, target.pod.group
        self._start_seconds = start_seconds
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
        self._require_answer()
        return self

    def end(self) -> None:
        atexit.unregister(self.end)
        with suppress(HeadwayError):  # it ends by itself after some hours
            self._kube.delete_job(run_object(f"storage-{self._session}"))

    def ask(self, path: str, method: str, content: bytes | None, headers: dict[str, str]) -> bytes:
        try:
            return self._kube.request_to_pod(
                self._pod, HTTP_PORT, path, method, content, {**headers, KEY_HEADER: self._key}
            )
        except Conflict as error:
            raise ClaimFileExists(error.message) from None
        except Forbidden as error:
            # An answer of the pod, not of the API server: its user may not use this file.
            raise RequestRefused(
                error.message,
                f"pods write as user {self._user}, group {self._group}: chown "
                f"{self._user}:{self._group} the folder on the file server; or pod: {{user: N, "
                "group: N} in the target",
            ) from None

    def _wait(self) -> None:
        began, said = self._clock.monotonic(), ""
        name = run_object(f"storage-{self._session}")
        while True:
            pods = self._kube.first_pods(labels(f"storage-{self._session}", "storage"), most=3)
            for pod in filter(is_ready, pods):
                assert pod.metadata is not None
                assert pod.metadata.name is not None
                self._pod = pod.metadata.name
                return
            self._raise_refusal(pods)
            job = self._kube.job(name)
            if job is None:
                raise NotFound(f"Job {name} was deleted")
            self._raise_failure(job, pods)
            reasons = pod_waits(self._kube, job, pods)
            words = reasons[0].words if reasons else "starting"
            if words != said:
                said = words
                self._say(f"the pod that serves the claim: {words}")
            if reasons and reasons[0].is_hopeless:
                self.end()
                raise self._cannot_start(words, reasons[0].hint)
            waited = self._clock.monotonic() - began
            if waited > self._start_seconds:
                self.end()
                raise RunFailed(
                    f"the pod that serves claim {self._claim} did not start within "
                    f"{self._start_seconds / 60:g} min: {words}",
                    f"kubectl get events -n {self._kube.namespace}",
                )
            self._clock.sleep(max(LOOK_SECONDS, LOOK_SHARE * waited))

    def _raise_refusal(self, pods: Sequence[Pod]) -> None:
        """If the image has another version of Headway, say, or is for another processor: the next
        pod would end the same way."""
        for pod in pods:
            if exit_code(pod) == Exit.BAD_INPUT or wrong_architecture(pod) is not None:
                self.end()
                words, hint = without_hint(termination_message(pod) or "no reason given")
                raise self._cannot_start(words.strip().removeprefix("error: "), hint)

    def _raise_failure(self, job: Job, pods: Sequence[Pod]) -> None:
        """If it has been started several times, and will not be again."""
        end = end_condition(job)
        if end is None or end.type != "Failed":
            return
        self.end()
        words, hint = without_hint(next(filter(None, map(termination_message, pods)), ""))
        raise self._cannot_start(words or end.message or end.reason or "no reason given", hint)

    def _cannot_start(self, why: str, hint: str | None) -> RunFailed:
        return RunFailed(f"the pod that serves claim {self._claim} cannot start: {why}", hint)

    def _require_answer(self) -> None:
        deadline = self._clock.monotonic() + ANSWER_SECONDS
        while True:
            try:
                self._kube.request_to_pod(self._pod, HTTP_PORT, "/healthz")
                return
            except ClusterUnreachable as error:
                if self._clock.monotonic() > deadline:
                    self.end()
                    raise RunFailed(
                        f"claim {self._claim} is served, but cannot be reached from here: "
                        f"{error.message}",
                        "ask the administrator of the cluster which of the two should work",
                    ) from None
                self._clock.sleep(ASK_AGAIN_SECONDS)
