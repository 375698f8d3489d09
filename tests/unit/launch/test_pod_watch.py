"""Pods of a run as the keeper knows them: over an API server that ends watches, forgets what was
and does not answer, and from what Kubernetes says of one pod."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from lightkube.resources.core_v1 import Pod

from headway.kube.client import KubeClient
from headway.kube.names import INDEX, labels
from headway.launch.pod_watch import PodWatch, pod_facts
from support.fake_kube import FakeKube, fake_kube
from support.fake_pods import PODS
from support.waiting import wait_for


class WatchedPods:
    def __init__(
        self, kube: FakeKube, kind: type[PodWatch] = PodWatch, seconds: float = 10.0
    ) -> None:
        """`seconds`: how long a test waits for what should be so in a moment."""
        self.kube = kube
        self.seconds = seconds
        self.said: list[str] = []
        self.watch = kind(
            KubeClient.from_kubeconfig(None, "ml"), "it", self.said.append, retry_seconds=0.02
        )

    def add(self, name: str, run: str = "it", **spec: Any) -> None:
        metadata = {"name": name, "labels": labels(run, "worker"), "annotations": {INDEX: "1"}}
        content = {"metadata": metadata, "spec": {"containers": [], **spec}, "status": {}}
        self.kube.put(f"{PODS}/{name}", content)

    def delete(self, name: str) -> None:
        self.kube.answer("DELETE", f"{PODS}/{name}", b"", {})

    def shows(self, *names: str) -> bool:
        pods = self.watch.pods()
        return pods is not None and sorted(pod.name for pod in pods) == sorted(names)

    def wait(self, *names: str) -> None:
        self.wait_for(f"pods {names}", lambda: self.shows(*names))

    def wait_for(self, what: str, look: Callable[[], object]) -> None:
        wait_for(what, look, self.seconds)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WatchedPods]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with fake_kube(tmp_path) as kube:
        made = WatchedPods(kube)
        yield made
        made.watch.stop()


def test_pods_of_the_run_come_change_and_go(watched: WatchedPods) -> None:
    watched.add("a")
    watched.add("other", run="other")
    assert watched.watch.pods() is None, "not listed yet"
    watched.watch.start()
    watched.wait("a")
    watched.add("b")
    watched.add("other-2", run="other")
    watched.wait("a", "b")
    watched.add("b", nodeName="node7")

    def machines() -> set[str | None]:
        return {pod.machine for pod in watched.watch.pods() or ()}

    watched.wait_for("the change", lambda: "node7" in machines())
    watched.delete("a")
    watched.wait("b")
    assert watched.said == []


def test_all_pages_of_a_long_list_are_read(watched: WatchedPods) -> None:
    watched.kube.page = 2
    for name in "abcde":
        watched.add(name)
    watched.watch.start()
    watched.wait(*"abcde")
    assert watched.kube.pods.num_lists == 3


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_watch_that_ends_is_resumed_where_it_was(watched: WatchedPods, is_cut: bool) -> None:
    watched.add("a")
    watched.watch.start()
    watched.wait("a")
    watched.add("b")
    watched.wait("a", "b")
    watched.kube.is_away = is_cut
    watched.kube.pods.end_watches(is_cut)
    watched.delete("a")
    watched.add("c")
    watched.kube.is_away = False
    watched.wait("b", "c")
    assert watched.kube.pods.num_lists == 1, "5,000 pods are not listed again for this"


def test_pods_are_listed_again_when_the_server_has_forgotten_what_changed(
    watched: WatchedPods,
) -> None:
    watched.add("a")
    watched.watch.start()
    watched.wait("a")
    watched.wait_for("a watch", lambda: watched.kube.pods.num_watches)
    watched.kube.is_away = True
    watched.kube.pods.end_watches(is_cut=True)
    watched.delete("a")
    watched.add("b")
    watched.kube.pods.forget_changes()
    watched.kube.is_away = False
    watched.wait("b")
    watched.add("c")
    watched.wait("b", "c")
    assert watched.kube.pods.num_lists == 2


def test_an_unreachable_api_server_is_reported_once_and_the_pods_stay_known(
    watched: WatchedPods,
) -> None:
    watched.kube.is_away = True
    watched.add("a")
    watched.watch.start()
    watched.wait_for("a few attempts", lambda: watched.kube.num_cut > 3)
    assert watched.watch.pods() is None
    watched.kube.is_away = False
    watched.wait("a")
    (said,) = watched.said
    assert said.startswith("pods cannot be watched: the API server does not answer")
    watched.wait_for("a watch", lambda: watched.kube.pods.num_watches)
    watched.kube.is_away = True
    watched.kube.pods.end_watches(is_cut=True)
    watched.wait_for("words", lambda: len(watched.said) > 1)
    assert watched.shows("a")


def test_a_permission_that_is_restored_is_used(watched: WatchedPods) -> None:
    watched.add("a")
    watched.kube.forbidden.add(PODS)
    watched.watch.start()
    watched.wait_for("words", lambda: watched.said)
    assert "forbidden" in watched.said[0]
    watched.kube.forbidden.clear()
    watched.wait("a")


def test_a_pod_that_the_keeper_deleted_is_gone_at_once(watched: WatchedPods) -> None:
    watched.add("a")
    watched.add("b")
    watched.watch.start()
    watched.wait("a", "b")
    watched.watch.forget("a")
    assert watched.shows("b")


def ended(code: int, words: str, container: str = "worker") -> Pod:
    state = {"terminated": {"exitCode": code, "message": words}}
    status = {"image": "", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    known = {
        "metadata": {"name": "it-2-x7k2p", "annotations": {INDEX: "2"}},
        "spec": {"containers": []},
        "status": {"phase": "Failed", "containerStatuses": [{"name": container, **status}]},
    }
    return cast(Pod, Pod.from_dict(known))


def test_the_words_of_the_pod_that_ended_the_run_are_kept() -> None:
    words = "KeyError: mine\nworker it-2-x7k2p.1/3 ended with exit code 1"
    facts = pod_facts(ended(1, words))
    assert (facts.index, facts.is_to_blame, facts.last_words) == (2, True, words)
    replaced = pod_facts(ended(137, words))
    assert (replaced.is_to_blame, replaced.last_words) == (False, None)


def test_a_pod_whose_wheels_could_not_be_copied_is_replaced() -> None:
    """As the Job does it: a Python that crashed is a fault of the machine."""
    assert pod_facts(ended(2, "error: another version", "wheels")).is_to_blame
    crashed = pod_facts(ended(1, "OSError", "wheels"))
    assert (crashed.is_to_blame, crashed.has_failed) == (False, True)
