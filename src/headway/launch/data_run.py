"""A preparation of data on Kubernetes, from the user's machine: start, watch, end. Its pods do not
depend on this process, and nothing is asked of them: how far they are is seen in the storage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from lightkube.models.core_v1 import Container
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

from headway.clock import Clock
from headway.errors import Exit, HeadwayError, RunFailed, without_hint
from headway.kube.api_errors import ClusterUnreachable, Conflict
from headway.kube.client import KubeClient
from headway.kube.manifests import owned_by
from headway.kube.names import COMPONENT, INSTANCE, MANAGED_BY, Object, labels, run_object
from headway.kube.pod_status import (
    WaitReason,
    creation_time,
    end_condition,
    exit_code,
    is_ready,
    termination_message,
)
from headway.launch.lasting import Lasting
from headway.launch.pod_waits import pod_waits

LOOK_SECONDS, FIRST_LOOK_SECONDS, LOOK_SHARE = 5.0, 0.5, 0.05
"""Pause between two looks: this share of the wait so far, but neither less nor more."""
AWAY_SECONDS = 120.0
"""How long an API server or a storage that does not answer is asked again."""
HOPELESS_SECONDS = 20.0
UNJOINED_SECONDS = 30.0
"""After the end of all pods, time for the manifest to be seen: file systems keep listings."""
NOT_STARTED_SECONDS = 180.0
"""Without any pod that runs, after which it is said how to ask for less. Machines that a cluster
makes for pods take one to three minutes."""
GONE_SECONDS = 150.0
LOOKED_AT = 50
"""Pods that are looked at: of more, the others wait for the same."""

SET_FOLDER = re.compile(r"/sets/(p-[0-9a-f]{32})\"")

Found = TypeVar("Found")


class NoLongerWatched(HeadwayError):
    """The preparation continues, and cannot be seen from here."""

    exit_code = Exit.STILL_RUNNING


@dataclass(frozen=True)
class PreparationState:
    """What the storage says of a preparation."""

    words: str
    is_done: bool = False
    failure: str | None = None
    """Content of failed.txt."""


class Watching(Protocol):
    """What is shown to the person who waits."""

    def show(self, text: str) -> None: ...

    def above(self, text: str) -> None: ...


@dataclass(frozen=True)
class _Pods:
    """What the cluster says of a preparation."""

    num_ready: int
    num_wanted: int
    reasons: Sequence[WaitReason]
    requests: Mapping[str, str]
    """Of each pod."""
    have_ended: bool
    error: str
    """Error of the newest pod that failed; empty if there is none."""


class DataRun:
    def __init__(self, kube: KubeClient, name: str, on: str, clock: Clock) -> None:
        self.kube = kube
        self.name = name
        """`data-KEY`."""
        self.on = on
        """Name of the target, for hints."""
        self.clock = clock

    def job(self) -> Job | None:
        """Its Job, unless that is being deleted."""
        job = self.kube.job(run_object(self.name))
        gone = job is None or job.metadata is None or job.metadata.deletionTimestamp is not None
        return None if gone else job

    def is_active(self) -> bool:
        job = self.job()
        return job is not None and end_condition(job) is None

    def start(self, objects: Sequence[Object]) -> bool:
        """Creates its objects. Returns False if somebody else has done so just before. An ended
        one is replaced: what it has prepared is in the storage."""
        there = self.kube.job(run_object(self.name))
        try:
            if there is not None and there.metadata is not None:
                if there.metadata.deletionTimestamp is None and end_condition(there) is None:
                    return False
                self.end(there.metadata.uid)
            made: Job = self.kube.create(objects[0])
        except Conflict:
            return False
        assert made.metadata is not None
        for one in owned_by(objects, str(made.metadata.uid))[1:]:
            self.kube.apply(one)
        return True

    def end(self, uid: str | None = None) -> bool:
        """Deletes its objects, and waits until the Job is gone. Returns whether it existed. Raises
        Conflict if it is another than the one with `uid`."""
        was_there = self.kube.delete_job(run_object(self.name), uid)
        deadline = self.clock.monotonic() + GONE_SECONDS
        while self.kube.job(run_object(self.name)) is not None:
            if self.clock.monotonic() > deadline:
                raise RunFailed(
                    f"Job {run_object(self.name)} is not deleted after {GONE_SECONDS:.0f} s",
                    f"kubectl get jobs,pods -n {self.kube.namespace}",
                )
            self.clock.sleep(1.0)
        return was_there

    def belong_to(self, job: Job | None) -> None:
        """It is deleted with the Job of this run, unless other runs need it. None: with none."""
        mine = self.job()
        if mine is None or mine.metadata is None:
            return
        before = [
            {"apiVersion": one.apiVersion, "kind": one.kind, "name": one.name, "uid": one.uid}
            for one in mine.metadata.ownerReferences or ()
        ]
        owners: list[Object] = []
        if job is not None and job.metadata is not None:
            owner = {"name": str(job.metadata.name), "uid": str(job.metadata.uid)}
            others = [one for one in before if one["name"] != owner["name"]]
            owners = [*others, {"apiVersion": "batch/v1", "kind": "Job", **owner}]
        patch = {"metadata": {"ownerReferences": owners or None}}
        self.kube.patch_job(run_object(self.name), patch)

    def watch(
        self,
        look: Callable[[], PreparationState],
        is_enough: Callable[[], bool],
        line: Watching,
    ) -> bool:
        """Returns when the set is complete, or `is_enough`; False if all pods have ended, and the
        set is not. Raises RunFailed with the reason why it never will be."""
        hopeless, unjoined, not_started = Lasting(), Lasting(), Lasting()
        said, began, is_advised = "", self.clock.monotonic(), False
        told = ""
        while True:
            state = self._patiently(look, line)
            if state.failure is not None:
                self.end()
                raise _failed(state.failure)
            if state.is_done or self._patiently(is_enough, line):
                return True
            pods = self._patiently(self._look_at_pods, line)
            now = self.clock.monotonic()
            if unjoined.seconds(pods.have_ended, now, now) > UNJOINED_SECONDS:
                return False
            words = "; ".join(f"{one.words} ({one.pods} of the pods)" for one in pods.reasons)
            if words and words != said:
                line.above(words)
            said = words
            if pods.error not in ("", told):
                line.above(f"a pod has failed, and another takes its place: {pods.error}")
                told = pods.error
            is_hopeless = pods.num_ready == 0 and any(one.is_hopeless for one in pods.reasons)
            if hopeless.seconds(is_hopeless, now, now) > HOPELESS_SECONDS:
                self.end()
                reason = pods.reasons[0]
                raise RunFailed(f"the preparation cannot start: {reason.words}", reason.hint)
            waits = pods.num_ready == 0 and bool(pods.reasons)
            if not_started.seconds(waits, now, now) > NOT_STARTED_SECONDS and not is_advised:
                is_advised = True
                line.above(self._advice(pods.requests))
            line.show(f"{state.words}  {pods.num_ready} of {pods.num_wanted} pods")
            pause = LOOK_SHARE * (now - began)
            self.clock.sleep(min(LOOK_SECONDS, max(FIRST_LOOK_SECONDS, pause)))

    def _advice(self, requests: Mapping[str, str]) -> str:
        each = ", ".join(f"{name}: {amount}" for name, amount in requests.items())
        return (
            f"no pod has started for {NOT_STARTED_SECONDS / 60:.0f} minutes"
            f"{f'; each asks for {each}' if each else ''}. What they ask for, and which machines "
            "may take them: prepare: {resources: ..., tolerations: ..., node_selector: ...} of "
            f"target {self.on}, after headway delete {self.name} --on {self.on}"
        )

    def _look_at_pods(self) -> _Pods:
        """Raises RunFailed if the Job has failed, or is gone."""
        job = self.job()
        if job is None:
            raise RunFailed(
                f"the preparation was ended: Job {run_object(self.name)} was deleted",
                "run the same command to resume it",
            )
        ended = end_condition(job)
        if ended is not None and ended.type == "Failed":
            raise self._why_failed(ended.message or ended.reason or "no reason given")
        pods = self._pods()
        waits = [pod for pod in pods if not is_ready(pod)]
        parts = (job.spec.completions if job.spec else None) or 0
        done = (job.status.succeeded if job.status else None) or 0
        num_ready = len(pods) - len(waits)
        at_once = (job.spec.parallelism if job.spec else None) or parts
        wanted = min(at_once, parts - done)
        reasons = pod_waits(self.kube, job, waits, num_ready + at_once - wanted)
        words = self._last_words() if job.status and job.status.failed else None
        error = words.partition("error: ")[2].strip() if words else ""
        have_ended = ended is not None
        return _Pods(num_ready, wanted, reasons, _requests(job), have_ended, error)

    def _pods(self) -> list[Pod]:
        """Those that run or wait to run."""
        selector = labels(self.name, "data")
        return [
            pod
            for phase in ("Running", "Pending")
            for pod in self.kube.first_pods(selector, LOOKED_AT, {"status.phase": phase})
            if exit_code(pod) is None
            and pod.metadata is not None
            and pod.metadata.deletionTimestamp is None
        ]

    def _why_failed(self, said: str) -> RunFailed:
        if words := self._last_words():
            return _failed(words)
        return RunFailed(
            f"the preparation failed: {said}",
            f"run the same command to resume it; kubectl get events -n {self.kube.namespace}",
        )

    def _last_words(self) -> str | None:
        """Words of the newest pod that failed with some."""
        failed = self.kube.first_pods(
            labels(self.name, "data"), LOOKED_AT, {"status.phase": "Failed"}
        )
        found = map(termination_message, sorted(failed, key=creation_time, reverse=True))
        return next(filter(None, found), None)

    def _patiently(self, look: Callable[[], Found], line: Watching) -> Found:
        deadline: float | None = None
        while True:
            try:
                return look()
            except (ClusterUnreachable, OSError) as error:
                now = self.clock.monotonic()
                words = error.message if isinstance(error, HeadwayError) else str(error)
                if deadline is None:
                    deadline = now + AWAY_SECONDS
                    line.above(f"{words}; retrying")
                elif now > deadline:
                    raise NoLongerWatched(
                        f"no longer watching: {words}",
                        f"the preparation continues on {self.on}: the same command watches it "
                        "again",
                    ) from None
                self.clock.sleep(LOOK_SECONDS)


def is_preparation(job: Job) -> bool:
    assert job.metadata is not None
    return (job.metadata.labels or {}).get(COMPONENT) == "data"


def prepared_folders(kube: KubeClient) -> Iterator[tuple[str, str | None]]:
    """The preparations that the cluster knows, and the folder `p-KEY` that each writes to; None: a
    place that a user has named."""
    for job in kube.jobs({MANAGED_BY: "headway", COMPONENT: "data"}):
        assert job.metadata is not None
        found = SET_FOLDER.search(_variable(job, "HEADWAY_DATA"))
        yield (job.metadata.labels or {}).get(INSTANCE, ""), found[1] if found else None


def _containers(job: Job) -> Sequence[Container]:
    pod = job.spec.template.spec if job.spec is not None else None
    return pod.containers if pod is not None else ()


def _requests(job: Job) -> dict[str, str]:
    found: dict[str, str] = {}
    for container in _containers(job):
        if container.resources is not None:
            found |= dict(container.resources.requests or {})
    return found


def _variable(job: Job, name: str) -> str:
    for container in _containers(job):
        for variable in container.env or ():
            if variable.name == name:
                return variable.value or ""
    return ""


def _failed(words: str) -> RunFailed:
    message, hint = without_hint(words)
    message = message.strip().removeprefix("error: ")
    again = "then run the same command to resume it"
    return RunFailed(
        f"the preparation failed: {message}", f"{hint}; {again}" if hint else f"fix it, {again}"
    )
