"""The output of a node of a run on Kubernetes, across all its pods: every line once, in order.

The API server returns a pod's lines with the kubelet's time, in nanoseconds. A stream that breaks
is resumed where it was. One that hangs, because the machine has lost power, is abandoned when
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
from headway.kube.api_errors import ClusterUnreachable
from headway.kube.client import KubeClient
from headway.kube.names import INDEX, labels, run_object
from headway.kube.pod_status import creation_time, pod_name
from headway.launch.job_status import job_status

LOOK_SECONDS = 1.0
FEW = 50
"""Limit of a node's pods to list: more than Kubernetes keeps for inspection."""


@dataclass
class _Stream:
    """The lines of one pod, read in a thread."""

    pod: str
    last: str = ""
    """Time of the last line returned."""
    lines: Queue[tuple[str, str] | None] = field(default_factory=Queue)
    """Lines with their times; None when the stream has ended or broken."""

    def start(self, kube: KubeClient, follow: bool) -> None:
        # With a precision of seconds: lines that come twice are dropped by their full time.
        since = f"{self.last[:19]}Z" if self.last else None

        def read() -> None:
            try:
                for time, line in kube.log_lines(self.pod, "worker", follow, since):
                    self.lines.put((time, line))
            except HeadwayError:
                pass  # tried again if the pod still exists
            finally:
                self.lines.put(None)

        self.lines = Queue()
        Thread(target=read, name=f"log of {self.pod}", daemon=True).start()


class NodeLog:
    def __init__(self, kube: KubeClient, run: str, index: int, clock: Clock) -> None:
        self._kube = kube
        self._run = run
        self._labels = {**labels(run, "worker"), INDEX: str(index)}
        self._clock = clock
        self._done: set[str] = set()
        """Pods whose lines have all been returned."""

    def lines(self, follow: bool) -> Iterator[str]:
        """Lines until the run has ended; without `follow`, those available now."""
        while True:
            over = self._is_over()
            pods = self._pods()
            for pod in pods:
                yield from self._of(pod, follow)
            if not follow or (over and not pods):
                return
            self._clock.sleep(LOOK_SECONDS)

    def _of(self, pod: Pod, follow: bool) -> Iterator[str]:
        name = pod_name(pod)
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
        """Started pods that have not been read yet, oldest first."""
        try:
            pods = self._kube.first_pods(self._labels, FEW)
        except ClusterUnreachable:
            return []
        begun = [pod for pod in pods if _has_begun(pod) and pod_name(pod) not in self._done]
        return sorted(begun, key=creation_time)

    def _is_left(self, name: str) -> bool:
        """Whether a silent pod no longer exists: its node may have another one by now."""
        try:
            names = [pod_name(pod) for pod in self._kube.first_pods(self._labels, FEW)]
        except ClusterUnreachable:
            return False
        return name not in names

    def _has_ended(self, name: str) -> bool:
        try:
            pod = self._kube.pod(name)
        except ClusterUnreachable:
            return False
        return pod is None or (
            pod.status is not None and pod.status.phase in ("Succeeded", "Failed")
        )

    def _is_over(self) -> bool:
        try:
            job = self._kube.job(run_object(self._run))
        except ClusterUnreachable:
            return False
        return job is None or not job_status(self._run, job).is_under_way


def _has_begun(pod: Pod) -> bool:
    return pod.status is not None and pod.status.phase in ("Running", "Succeeded", "Failed")
