"""Commands find the coordinator that acts, of two; and a run that is resumed has both again."""

from __future__ import annotations

from typing import Any, cast

from lightkube.resources.apps_v1 import ReplicaSet
from lightkube.resources.core_v1 import Pod

from headway.errors import NotFound
from headway.kube.api_errors import Forbidden, PodUnreachable
from headway.kube.client import KubeClient
from headway.launch.cluster_run import ClusterRun, wanted_coordinators
from support.clock import Patient


class TwoPods:
    """Of a run whose coordinator's pods are these, as the API server has them."""

    namespace = "ml"

    def __init__(self, *pods: str, acting: str) -> None:
        self.pods = list(pods)
        self.acting = acting
        self.holder: str | None = None
        self.lost: set[str] = set()
        self.asked: list[str] = []

    def cached_pods(self, selector: str) -> list[Pod]:
        made = [{"metadata": {"name": one}, "status": {"phase": "Running"}} for one in self.pods]
        return [cast(Pod, Pod.from_dict(one)) for one in made]

    def call(self, method: str, path: str) -> dict[str, Any]:
        if self.holder is None:
            raise Forbidden("leases is forbidden")
        return {"metadata": {}, "spec": {"holderIdentity": self.holder}}

    def request_to_pod(self, pod: str, port: int, path: str) -> bytes:
        self.asked.append(pod)
        if pod in self.lost:
            raise PodUnreachable(f"pod {pod} cannot be reached")
        if pod != self.acting:
            raise NotFound(f"pod {pod}: no page {path}")
        return b"page"


def cluster_run(kube: TwoPods) -> ClusterRun:
    return ClusterRun(cast(KubeClient, kube), "it", "lab", Patient())


def test_the_holder_of_the_lease_is_asked() -> None:
    kube = TwoPods("it-a", "it-b", acting="it-b")
    kube.holder = "it-b_12ab"
    run = cluster_run(kube)
    assert run.ask("/status") == b"page"
    assert run.ask("/status") == b"page"
    assert kube.asked == ["it-b", "it-b"]


def test_who_may_not_read_the_lease_asks_one_after_the_other() -> None:
    kube = TwoPods("it-a", "it-b", acting="it-b")
    run = cluster_run(kube)
    assert run.ask("/status") == b"page"
    assert kube.asked == ["it-a", "it-b"]


def test_another_has_taken_over() -> None:
    """The machine of the first is lost, and its pod is still there."""
    kube = TwoPods("it-a", "it-b", acting="it-a")
    kube.holder = "it-a_1"
    run = cluster_run(kube)
    assert run.ask("/status") == b"page"
    kube.lost, kube.acting, kube.holder = {"it-a"}, "it-b", "it-b_1"
    assert run.ask("/status") == b"page"
    assert kube.asked == ["it-a", "it-a", "it-b"]
    assert run.unreachable is None


def test_nobody_acts_for_the_moment() -> None:
    kube = TwoPods("it-a", "it-b", acting="")
    run = cluster_run(kube)
    assert run.ask("/status") is None
    assert run.unreachable is None
    kube.lost = {"it-b"}
    assert run.ask("/status") is None
    assert run.unreachable is not None


def test_how_many_there_are_to_be() -> None:
    spec = {"spec": {"selector": {}}}
    with_standby = {"metadata": {"annotations": {"headway/coordinators": "2"}}, **spec}
    assert wanted_coordinators(cast(ReplicaSet, ReplicaSet.from_dict(with_standby))) == 2
    assert (
        wanted_coordinators(cast(ReplicaSet, ReplicaSet.from_dict({"metadata": {}, **spec}))) == 1
    )
