"""`headway target cleanup`: the objects of runs that were stopped long ago, and of no others."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.clock import SystemClock, stamp
from headway.kube.api_errors import Conflict
from headway.kube.client import KubeClient
from headway.kube.names import KEEP_STOPPED
from support.fake_kube import FakeKube, fake_kube
from support.in_process import Headway
from support.kept_run import JOBS

DAY = 86400.0
IMAGE = f"registry/headway@sha256:{'0' * 64}"


def write_target(folder: Path, keep: str = "") -> None:
    text = f"lab: {{kube: {{namespace: ml}}, image: {IMAGE}{keep}}}\n"
    (folder / "targets.yaml").write_text(text)


@pytest.fixture
def kube(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
    write_target(folder)
    with fake_kube(folder) as kube:
        stop(kube, "old", days=15)
        stop(kube, "recent", days=13)
        kube.job("training", ready=2)
        stop(kube, "queued", days=30, queue="research")
        kube.job("failed", conditions=[{"type": "Failed", "status": "True"}])
        yield kube


def stop(kube: FakeKube, run: str, days: float, queue: str | None = None) -> None:
    since = stamp(SystemClock().now() - days * DAY)[:19] + "Z"
    suspended = {"type": "Suspended", "status": "True", "lastTransitionTime": since}
    kube.job(run, suspend=True, queue=queue, conditions=[suspended])


def test_only_those_that_were_stopped_long_ago(headway: Headway, kube: FakeKube) -> None:
    said = headway("target", "cleanup", "lab", "--yes")
    assert said.exit_code == 0, said
    assert said.out == "old  stopped 15.0 days ago\n"
    assert "deleted the objects of run old\n" in said.err
    left = ["headway-recent", "headway-training", "headway-queued", "headway-failed"]
    assert kube.named("jobs") == left
    again = headway("target", "cleanup", "lab")
    assert "no run on lab was stopped longer ago than keep.stopped of its target" in again.err


def test_the_target_says_how_long(headway: Headway, kube: FakeKube, folder: Path) -> None:
    write_target(folder, ", keep: {stopped: 10d}")
    headway("target", "cleanup", "lab", "--yes")
    assert kube.named("jobs") == ["headway-training", "headway-queued", "headway-failed"]


def test_nothing_is_deleted_unless_the_user_says_so(
    headway: Headway, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert headway("target", "cleanup", "lab").exit_code == 1
    assert "headway-old" in kube.named("jobs")


def test_a_run_that_is_resumed_meanwhile_is_left_alone(
    headway: Headway, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resume() -> None:
        kube.objects[f"{JOBS}/headway-old"]["spec"]["suspend"] = False

    assert_left_alone(headway, kube, monkeypatch, resume)


def assert_left_alone(
    headway: Headway, kube: FakeKube, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]
) -> None:
    """Run `old`, of which something happens while the question stands."""

    class Answering(io.StringIO):
        def readline(self, *_: object) -> str:
            meanwhile()
            return "y\n"

    monkeypatch.setattr("sys.stdin", Answering())
    said = headway("target", "cleanup", "lab")
    assert said.exit_code == 0, said
    assert "run old has changed meanwhile, and is left alone" in said.err
    assert "headway-old" in kube.named("jobs")


def test_a_run_is_kept_as_long_as_the_target_said_that_it_was_launched_on(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    """Others who share the namespace may have other values."""
    write_target(folder, ", keep: {stopped: 1d}")
    keep(kube, "old", str(30 * DAY))
    keep(kube, "recent", "ever")
    assert headway("target", "cleanup", "lab", "--yes").out == ""
    keep(kube, "recent", f"{12 * DAY:.0f}")
    assert headway("target", "cleanup", "lab", "--yes").out == "recent  stopped 13.0 days ago\n"
    assert "headway-old" in kube.named("jobs")


def keep(kube: FakeKube, run: str, seconds: str) -> None:
    job = kube.objects[f"{JOBS}/headway-{run}"]
    job["metadata"]["annotations"] = {KEEP_STOPPED: seconds}


def test_a_run_that_was_resumed_and_stopped_again_meanwhile_is_left_alone(
    headway: Headway, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_again() -> None:
        uid = kube.objects[f"{JOBS}/headway-old"]["metadata"]["uid"]
        stop(kube, "old", days=0)
        assert kube.objects[f"{JOBS}/headway-old"]["metadata"]["uid"] == uid

    assert_left_alone(headway, kube, monkeypatch, stop_again)


def test_a_run_that_changes_in_the_last_moment_is_left_alone_and_the_others_are_not(
    headway: Headway, kube: FakeKube
) -> None:
    stop(kube, "older", days=20)
    kube.refusing[f"DELETE {JOBS}/headway-old"] = [(409, "the object has been modified")]
    said = headway("target", "cleanup", "lab", "--yes")
    assert said.exit_code == 0, said
    assert "headway-old" in kube.named("jobs")
    assert "headway-older" not in kube.named("jobs")


def test_what_has_changed_since_the_last_look_is_not_deleted(kube: FakeKube) -> None:
    kube.objects[f"{JOBS}/headway-old"]["metadata"]["resourceVersion"] = "8"
    client = KubeClient.from_kubeconfig(None, "ml")
    with pytest.raises(Conflict):
        client.delete_job("headway-old", version="7")
    assert client.delete_job("headway-old", version="8")
