"""The run's pods, as the API server knows them: listed once in pages, then followed in a thread.
While it is away, what was known last is what there is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from threading import Event, Lock, Thread

from lightkube.resources.core_v1 import Pod

from headway.errors import Exit, HeadwayError
from headway.kube.client import ClusterAway, Kube, StaleVersion
from headway.kube.names import FINALIZER, GATE, INDEX, labels
from headway.kube.views import exit_code, how_it_ended, is_cut_off, last_words
from headway.kube.worker_job import OWN_ERRORS
from headway.launch.replacing import PodFacts

RETRY_SECONDS = 1.0


class PodWatch:
    def __init__(self, kube: Kube, run: str, say: Callable[[str], None]) -> None:
        self._kube = kube
        self._labels = labels(run, "worker")
        self._say = say
        self._pods: dict[str, PodFacts] = {}
        self._lock = Lock()
        self._stop = Event()
        self.is_complete = Event()
        """All that were there at the start have been seen."""

    def start(self) -> None:
        Thread(target=self._follow, name="pods", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def pods(self) -> list[PodFacts]:
        with self._lock:
            return list(self._pods.values())

    def forget(self, name: str) -> None:
        """It was deleted by us: the news of it need not be waited for."""
        with self._lock:
            self._pods.pop(name, None)

    def _follow(self) -> None:
        version, said = "", ""
        while not self._stop.is_set():
            try:
                if not version:
                    pods, version = self._kube.pods(self._labels, facts_of)
                    with self._lock:
                        self._pods = {facts.name: facts for facts in pods}
                    self.is_complete.set()
                    said = ""
                for what, pod in self._kube.watch_pods(self._labels, version):
                    assert pod.metadata is not None
                    assert pod.metadata.resourceVersion is not None
                    version = pod.metadata.resourceVersion
                    self._hear(what, facts_of(pod))
            except StaleVersion:
                version = ""
            except ClusterAway as error:
                if error.message != said:
                    said = error.message
                    self._say(f"pods cannot be watched: {said}")
                self._stop.wait(RETRY_SECONDS)
            except HeadwayError as error:  # a right that was taken away may come back
                self._say(f"pods cannot be watched: {error}")
                version = ""
                self._stop.wait(10 * RETRY_SECONDS)

    def _hear(self, what: str, facts: PodFacts) -> None:
        with self._lock:
            if what == "DELETED":
                self._pods.pop(facts.name, None)
            elif what in ("ADDED", "MODIFIED"):
                self._pods[facts.name] = facts


def facts_of(pod: Pod) -> PodFacts:
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    assert metadata is not None
    assert spec is not None
    assert metadata.name is not None
    created, deleted = metadata.creationTimestamp, metadata.deletionTimestamp
    code = exit_code(pod)
    is_failed = status is not None and status.phase == "Failed"
    has_failed = is_failed and code not in OWN_ERRORS
    return PodFacts(
        name=metadata.name,
        index=int((metadata.annotations or {}).get(INDEX, 0)),
        node=spec.nodeName,
        created=_seconds(created),
        is_gated=any(gate.name == GATE for gate in spec.schedulingGates or ()),
        gone_by=_seconds(deleted) if deleted is not None else None,
        has_ended=status is not None and status.phase in ("Succeeded", "Failed"),
        is_cut_off=is_cut_off(pod),
        has_failed=has_failed,
        is_to_blame=is_failed and not has_failed,
        left=last_words(pod) if is_failed and not has_failed else None,
        is_uncounted=has_failed and FINALIZER in (metadata.finalizers or ()),
        how=how_it_ended(pod) if has_failed and code != Exit.STOPPED else None,
    )


def _seconds(time: datetime | None) -> float:
    return time.timestamp() if time is not None else 0.0
