"""What a node of a run on Kubernetes prints, through all the pods it has had: every line once, in
order.

The API server gives a pod's lines with the kubelet's time, in nanoseconds. A stream may break, and
is then taken up again where it was; it may hang, when the machine has no power, and is left when
Kubernetes has another pod for the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import Empty, Queue
from threading import Thread

from lightkube.resources.core_v1 import Pod

from headway.clock import Clock
from headway.errors import HeadwayError
from headway.kube.client import ClusterAway, Kube
from headway.kube.names import INDEX, labels, run_object
from headway.kube.views import created, job_end

LOOK_SECONDS = 1.0
FEW = 50
"""Pods of a node that are still known to Kubernetes: more than are kept to be looked at."""


@dataclass
class _Stream:
    """One pod's lines, read in a thread."""

    pod: str
    last: str = ""
    """Time of the newest line that was given on."""
    lines: Queue[tuple[str, str] | None] = field(default_factory=Queue)
    """None: it has ended or broken."""

    def start(self, kube: Kube, follow: bool) -> None:
        # By the second: what comes twice is left out by its whole time.
        since = f"{self.last[:19]}Z" if self.last else None

        def read() -> None:
            try:
                for time, line in kube.log_lines(self.pod, "worker", follow, since):
                    self.lines.put((time, line))
            except HeadwayError:
                pass  # looked at again, if the pod is still there
            finally:
                self.lines.put(None)

        self.lines = Queue()
        Thread(target=read, name=f"log of {self.pod}", daemon=True).start()


class NodeLog:
    def __init__(self, kube: Kube, run: str, index: int, clock: Clock) -> None:
        self._kube = kube
        self._run = run
        self._labels = {**labels(run, "worker"), INDEX: str(index)}
        self._clock = clock
        self._done: set[str] = set()
        """Pods whose lines have all been given on."""

    def lines(self, follow: bool) -> Iterator[str]:
        """Until the run has ended; without `follow`, what there is."""
        while True:
            over = self._is_over()
            pods = self._pods()
            for pod in pods:
                yield from self._of(pod, follow)
            if not follow or (over and not pods):
                return
            self._clock.sleep(LOOK_SECONDS)

    def _of(self, pod: Pod, follow: bool) -> Iterator[str]:
        name = _name(pod)
        stream = _Stream(name)
        stream.start(self._kube, follow)
        while True:
            try:
                got = stream.lines.get(timeout=LOOK_SECONDS)
            except Empty:
                if self._is_left(name):
                    break
                continue
            if got is not None:
                time, line = got
                if time > stream.last:
                    stream.last = time
                    yield line
                continue
            if not follow or self._has_ended(name):
                break
            self._clock.sleep(LOOK_SECONDS)
            stream.start(self._kube, follow)
        self._done.add(name)

    def _pods(self) -> list[Pod]:
        """Those not read yet that have begun, the oldest first."""
        try:
            pods = self._kube.first_pods(self._labels, FEW)
        except ClusterAway:
            return []
        begun = [pod for pod in pods if _has_begun(pod) and _name(pod) not in self._done]
        return sorted(begun, key=created)

    def _is_left(self, name: str) -> bool:
        """A silent pod: whether there is another one for its node by now, or it is gone."""
        try:
            names = [_name(pod) for pod in self._kube.first_pods(self._labels, FEW)]
        except ClusterAway:
            return False
        return name not in names

    def _has_ended(self, name: str) -> bool:
        try:
            pod = self._kube.pod(name)
        except ClusterAway:
            return False
        return pod is None or (
            pod.status is not None and pod.status.phase in ("Succeeded", "Failed")
        )

    def _is_over(self) -> bool:
        try:
            job = self._kube.job(run_object(self._run))
        except ClusterAway:
            return False
        if job is None:
            return True
        assert job.spec is not None
        return job_end(job) is not None or bool(job.spec.suspend)


def _name(pod: Pod) -> str:
    assert pod.metadata is not None
    return pod.metadata.name or ""


def _has_begun(pod: Pod) -> bool:
    return pod.status is not None and pod.status.phase in ("Running", "Succeeded", "Failed")
