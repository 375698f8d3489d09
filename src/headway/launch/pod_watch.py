"""The run's pods, as the API server knows them: listed once in pages, then watched in a thread.
While the API server is away, the pods are as last known."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from threading import Event, Lock, Thread

from lightkube.resources.core_v1 import Pod

from headway.errors import Exit, HeadwayError
from headway.kube.api_errors import ClusterUnreachable, StaleVersion
from headway.kube.client import KubeClient
from headway.kube.names import FINALIZER, GATE, INDEX, SUSPECT_UNTIL, labels
from headway.kube.pod_status import (
    describe_pod_exit,
    end_time,
    exit_code,
    is_own_error,
    is_unreachable,
    placed_time,
    ran_seconds,
    termination_message,
    was_killed,
    why_not_started,
)
from headway.kube.scheduling_gate import num_affinity_terms
from headway.kube.wrong_architecture import wrong_architecture
from headway.launch.pod_decisions import PodFacts

RETRY_SECONDS = 1.0


class PodWatch:
    def __init__(
        self,
        kube: KubeClient,
        run: str,
        say: Callable[[str], None],
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._kube = kube
        self._retry_seconds = retry_seconds
        self._labels = labels(run, "worker")
        self._say = say
        self._pods: dict[str, PodFacts] | None = None
        self._lock = Lock()
        self._stop = Event()

    def start(self) -> None:
        Thread(target=self._follow, name="pods", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def pods(self) -> list[PodFacts] | None:
        """As last known; None: not listed yet."""
        with self._lock:
            return None if self._pods is None else list(self._pods.values())

    def forget(self, name: str) -> None:
        """We deleted it: do not wait for the watch to say so."""
        with self._lock:
            if self._pods is not None:
                self._pods.pop(name, None)

    def _follow(self) -> None:
        version, said = "", ""
        while not self._stop.is_set():
            try:
                if not version:
                    version = self._list()
                    said = ""
                for what, pod in self._kube.watch_pods(self._labels, version):
                    assert pod.metadata is not None
                    assert pod.metadata.resourceVersion is not None
                    version = pod.metadata.resourceVersion
                    self._update(what, pod_facts(pod))
            except StaleVersion:
                version = ""
            except ClusterUnreachable as error:
                if error.message != said:
                    said = error.message
                    self._say(f"pods cannot be watched: {said}")
                self._stop.wait(self._retry_seconds)
            except HeadwayError as error:  # a right that was taken away may be given back
                self._say(f"pods cannot be watched: {error}")
                version = ""
                self._stop.wait(10 * self._retry_seconds)

    def _list(self) -> str:
        """The version from which to watch."""
        pods, version = self._kube.pods(self._labels, pod_facts)
        with self._lock:
            self._pods = {facts.name: facts for facts in pods}
        return version

    def _update(self, what: str, facts: PodFacts) -> None:
        with self._lock:
            assert self._pods is not None
            if what == "DELETED":
                self._pods.pop(facts.name, None)
            elif what in ("ADDED", "MODIFIED"):
                self._pods[facts.name] = facts


def pod_facts(pod: Pod) -> PodFacts:
    """From its object. A pod with an error of the run itself fails the whole run; after any other
    failure another pod takes its place."""
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    assert metadata is not None
    assert spec is not None
    assert metadata.name is not None
    created, deleted = metadata.creationTimestamp, metadata.deletionTimestamp
    annotations = metadata.annotations or {}
    owners = metadata.ownerReferences or ()
    code = exit_code(pod)
    is_failed = status is not None and status.phase == "Failed"
    is_to_blame = is_failed and is_own_error(pod)
    has_failed = is_failed and not is_to_blame
    return PodFacts(
        name=metadata.name,
        index=int(annotations.get(INDEX, 0)),
        machine=spec.nodeName,
        created=_seconds(created),
        is_gated=any(gate.name == GATE for gate in spec.schedulingGates or ()),
        delete_by=_seconds(deleted) if deleted is not None else None,
        has_ended=status is not None and status.phase in ("Succeeded", "Failed"),
        num_affinity_terms=num_affinity_terms(pod),
        job_uid=next((owner.uid for owner in owners if owner.controller), None),
        suspect_until=_until(annotations.get(SUSPECT_UNTIL)),
        is_cut_off=is_unreachable(pod),
        has_failed=has_failed,
        is_to_blame=is_to_blame,
        last_words=termination_message(pod) if is_to_blame else None,
        is_uncounted=has_failed and FINALIZER in (metadata.finalizers or ()),
        how=describe_pod_exit(pod) if has_failed and code != Exit.STOPPED else None,
        waits_for=why_not_started(pod),
        ran_seconds=ran_seconds(pod),
        was_killed=has_failed and was_killed(pod),
        has_broken_device=has_failed and code == Exit.DEVICE_LOST,
        never_runs=has_failed and wrong_architecture(pod) is not None,
        placed_at=_seconds(placed_time(pod)) if spec.nodeName is not None else None,
        ended_at=_seconds(ended) if (ended := end_time(pod)) is not None else None,
    )


def _seconds(time: datetime | None) -> float:
    return time.timestamp() if time is not None else 0.0


def _until(annotation: str | None) -> float | None:
    try:
        return float(annotation or "")
    except ValueError:  # somebody has edited it
        return None
