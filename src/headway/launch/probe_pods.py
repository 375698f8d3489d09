"""The pods of a check: started, waited for with a deadline, asked, and gone."""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

from headway.clock import Clock
from headway.errors import HeadwayError
from headway.kube.api_errors import ClusterUnreachable
from headway.kube.client import KubeClient
from headway.kube.manifests import owned_by
from headway.kube.names import (
    HTTP_PORT,
    INDEX,
    Component,
    Object,
    coordinator_object,
    labels,
    run_object,
)
from headway.kube.pod_status import WaitReason, describe_pod_exit, is_ready, pod_name
from headway.kube.probe import ALONE, KEY_HEADER
from headway.kube.probe_objects import NUM_WORKERS, ended_by, timer_name, timer_of
from headway.launch.pod_waits import pod_waits

LOOK_SECONDS = 0.5
HOPELESS_SECONDS = 10.0
"""A reason that does not change by itself is believed after this time."""
LISTEN_SECONDS = 20.0
"""For a server in a pod that runs."""
ASK_AGAIN_SECONDS = 0.5
COMPONENTS: tuple[Component, ...] = ("worker", "coordinator")


@dataclass(frozen=True)
class StartedProbe:
    """A pod that runs a probe."""

    name: str
    title: str
    """`worker 0`, `coordinator`."""
    component: Component
    address: str
    machine: str
    seconds: float
    """From the start of the check until it was seen ready."""


@dataclass
class ProbeStart:
    """What became of all of them."""

    probes: list[StartedProbe] = field(default_factory=list)
    waits: dict[str, list[WaitReason]] = field(default_factory=dict)
    """By component: why the others do not run."""

    @property
    def workers(self) -> list[StartedProbe]:
        return [one for one in self.probes if one.component == "worker"]

    @property
    def coordinator(self) -> StartedProbe | None:
        return next((one for one in self.probes if one.component == "coordinator"), None)


class ProbePods:
    """Of one check. `end` may be called at any time, and again."""

    def __init__(
        self,
        kube: KubeClient,
        run: str,
        objects: Sequence[Object],
        key: str,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._kube = kube
        self._run = run
        self._objects = objects
        self._key = key
        self._clock = clock
        self._say = say
        self.made: tuple[float, float] | None = None
        """When the Job was made: by the API server's clock, and by ours."""

    def start(self) -> None:
        """Raises HeadwayError if one of the objects is refused; those before it are then there."""
        atexit.register(self.end)
        timer = timer_of(self._objects[0])
        made: Job = self._kube.create(timer)
        assert made.metadata is not None
        began = self._clock.now()
        job: Job = self._kube.create(ended_by(self._objects[0], timer, str(made.metadata.uid)))
        assert job.metadata is not None
        assert job.metadata.creationTimestamp is not None
        # The server's clock is given in whole seconds.
        server = job.metadata.creationTimestamp.timestamp() + 0.5
        self.made = server, (began + self._clock.now()) / 2
        for one in owned_by(self._objects, str(job.metadata.uid))[1:]:
            self._kube.apply(one)

    def end(self) -> None:
        """With all that the Job owns. It would end by itself, too, some minutes later."""
        atexit.unregister(self.end)
        job = run_object(self._run)
        try:
            self._kube.delete_job(job)
            self._kube.delete_job(timer_name(job))
        except HeadwayError as error:
            self._say(
                f"warning: Job {job} of this check cannot be deleted: "
                f"{error.message}; its pods end by themselves in some minutes"
            )

    def wait(self, seconds: float) -> ProbeStart:
        """Until all run; until those that do not never will; or until the time is over."""
        began, hopeless_since, said = self._clock.monotonic(), None, ""
        ready_after: dict[str, float] = {}
        while True:
            start = ProbeStart()
            for component in COMPONENTS:
                self._try_to_look(component, start, began, ready_after)
            waits = [(one, why) for one, found in start.waits.items() for why in found]
            if not waits:
                return start
            now = self._clock.monotonic()
            words = "; ".join(f"{one}: {why.words}" for one, why in waits[:2])
            if words != said:
                said = words
                self._say(words)
            if all(found and found[0].is_hopeless for found in start.waits.values()):
                hopeless_since = now if hopeless_since is None else hopeless_since
                if now - hopeless_since > HOPELESS_SECONDS:
                    return start
            else:
                hopeless_since = None
            if now - began > seconds:
                return start
            self._clock.sleep(LOOK_SECONDS)

    def _try_to_look(
        self, component: Component, start: ProbeStart, began: float, ready_after: dict[str, float]
    ) -> None:
        """An API server that does not answer may soon; one that refuses does so again."""
        try:
            self._look(component, start, began, ready_after)
        except HeadwayError as error:
            is_hopeless = not isinstance(error, ClusterUnreachable)
            words = f"its pods cannot be looked at: {error.message}"
            start.waits[component] = [WaitReason(words, 1, is_hopeless)]

    def _look(
        self, component: Component, start: ProbeStart, began: float, ready_after: dict[str, float]
    ) -> None:
        pods = self._kube.first_pods(labels(self._run, component), most=10)
        alive = [pod for pod in pods if pod.status and pod.status.phase in ("Pending", "Running")]
        ready = [pod for pod in alive if is_ready(pod)]
        for pod in sorted(ready, key=pod_name):
            seconds = self._clock.monotonic() - began
            start.probes.append(
                _started(pod, component, ready_after.setdefault(pod_name(pod), seconds))
            )
        wanted = NUM_WORKERS if component == "worker" else 1
        if len(ready) >= wanted:
            return
        if ended := [pod for pod in pods if pod not in alive]:
            words = f"its pod {describe_pod_exit(ended[-1])}{_last_words(ended[-1])}"
            start.waits[component] = [WaitReason(words, len(ended), is_hopeless=True)]
            return
        owner = (
            self._kube.job(run_object(self._run))
            if component == "worker"
            else self._kube.replica_set(coordinator_object(self._run))
        )
        if owner is None:
            start.waits[component] = [WaitReason("its owner was deleted", wanted, True)]
            return
        waiting = [pod for pod in alive if pod not in ready]
        found = pod_waits(self._kube, owner, waiting, len(ready))
        start.waits[component] = found or [WaitReason("starting", wanted - len(ready))]

    def ask(self, probe: StartedProbe, task: str, content: Object | None = None) -> dict[str, Any]:
        """Its answer. Raises HeadwayError if it cannot be reached, or says that it failed."""
        deadline = self._clock.monotonic() + LISTEN_SECONDS
        body, headers = json.dumps(content or {}).encode(), {KEY_HEADER: self._key}
        while True:
            try:
                answer = self._kube.request_to_pod(
                    probe.name, HTTP_PORT, f"/{task}", "POST", body, headers
                )
                return dict(json.loads(answer))
            except ClusterUnreachable as error:
                is_early = "does not listen yet" in error.message
                if not is_early or self._clock.monotonic() > deadline:
                    raise
            self._clock.sleep(ASK_AGAIN_SECONDS)

    @property
    def way(self) -> str | None:
        """By which pods are reached; None: by none yet."""
        return self._kube.way_to_pods

    def found_alone(self, probe: StartedProbe) -> dict[str, Any]:
        """What a pod that cannot be reached has printed; empty if nothing yet."""
        with suppress(HeadwayError):
            for _, text in self._kube.log_lines(probe.name, probe.component, False, None):
                if text.startswith(ALONE):
                    return dict(json.loads(text.removeprefix(ALONE)))
        return {}


def _started(pod: Pod, component: Component, seconds: float) -> StartedProbe:
    assert pod.metadata is not None
    assert pod.spec is not None
    assert pod.status is not None
    index = (pod.metadata.labels or {}).get(INDEX, "")
    return StartedProbe(
        name=pod_name(pod),
        title=f"{component} {index}".strip(),
        component=component,
        address=pod.status.podIP or "",
        machine=pod.spec.nodeName or "",
        seconds=seconds,
    )


def _last_words(pod: Pod) -> str:
    for container in (pod.status.containerStatuses if pod.status else None) or ():
        ended = container.state.terminated if container.state is not None else None
        if ended is not None and ended.message:
            return f": {' '.join(ended.message.split())[:300]}"
    return ""
