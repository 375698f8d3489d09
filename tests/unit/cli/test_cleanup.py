"""`headway cleanup`: the objects of runs that were stopped long ago, and of no others."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.clock import SystemClock, stamp
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
    said = headway("cleanup", "--on", "lab", "--yes")
    assert said.exit_code == 0, said
    assert said.out == "old  stopped 15.0 days ago\n"
    assert "deleted the objects of run old\n" in said.err
    left = ["headway-recent", "headway-training", "headway-queued", "headway-failed"]
    assert kube.named("jobs") == left
    assert "no run on lab was stopped more than 14d ago" in headway("cleanup", "--on", "lab").err


def test_the_target_says_how_long(headway: Headway, kube: FakeKube, folder: Path) -> None:
    write_target(folder, ", keep: {stopped: 10d}")
    headway("cleanup", "--on", "lab", "--yes")
    assert kube.named("jobs") == ["headway-training", "headway-queued", "headway-failed"]


def test_nothing_is_deleted_unless_the_user_says_so(
    headway: Headway, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert headway("cleanup", "--on", "lab").exit_code == 1
    assert "headway-old" in kube.named("jobs")


def test_a_run_that_is_resumed_meanwhile_is_left_alone(
    headway: Headway, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Resuming(io.StringIO):
        def readline(self, *_: object) -> str:
            kube.objects[f"{JOBS}/headway-old"]["spec"]["suspend"] = False
            return "y\n"

    monkeypatch.setattr("sys.stdin", Resuming())
    said = headway("cleanup", "--on", "lab")
    assert said.exit_code == 0, said
    assert "run old is not stopped any more, and is left alone" in said.err
    assert "headway-old" in kube.named("jobs")
