"""Commands find the coordinator's pod, also once it was replaced."""

from __future__ import annotations

from typing import cast

from lightkube.resources.core_v1 import Pod

from headway.errors import NotFound
from headway.kube.api_errors import PodUnreachable
from headway.kube.client import KubeClient
from headway.launch.cluster_run import ClusterRun
from support.clock import Patient


class OnePod:
    """Of a run whose coordinator's pod this is, as the API server has it."""

    namespace = "ml"

    def __init__(self, pod: str) -> None:
        self.pod = pod
        self.is_lost = self.is_starting = False
        self.asked: list[str] = []

    def cached_pods(self, selector: str) -> list[Pod]:
        made = {"metadata": {"name": self.pod}, "status": {"phase": "Running"}}
        return [cast(Pod, Pod.from_dict(made))]

    def request_to_pod(self, pod: str, port: int, path: str) -> bytes:
        self.asked.append(pod)
        if pod != self.pod or self.is_lost:
            raise PodUnreachable(f"pod {pod} cannot be reached")
        if self.is_starting:
            raise NotFound(f"pod {pod}: no page {path}")
        return b"page"


def cluster_run(kube: OnePod) -> ClusterRun:
    return ClusterRun(cast(KubeClient, kube), "it", "lab", Patient())


def test_the_pod_that_has_answered_is_asked_again() -> None:
    kube = OnePod("it-a")
    run = cluster_run(kube)
    assert run.ask("/status") == run.ask("/status") == b"page"
    assert kube.asked == ["it-a", "it-a"]


def test_a_pod_that_was_replaced_is_found() -> None:
    kube = OnePod("it-a")
    run = cluster_run(kube)
    assert run.ask("/status") == b"page"
    kube.pod = "it-b"
    assert run.ask("/status") == b"page"
    assert kube.asked == ["it-a", "it-a", "it-b"]
    assert run.unreachable is None


def test_one_that_cannot_be_reached_is_told_from_one_that_has_no_pages_yet() -> None:
    kube = OnePod("it-a")
    kube.is_starting = True
    run = cluster_run(kube)
    assert run.ask("/status") is None
    assert run.unreachable is None
    kube.is_lost = True
    assert run.ask("/status") is None
    assert run.unreachable is not None
    assert kube.asked == ["it-a", "it-a"]
