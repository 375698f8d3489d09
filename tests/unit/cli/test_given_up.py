"""A run on a cluster that its keeper gives up while the command that launched it waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.cli.target_launch import wait_until_training
from headway.cli.target_run import TargetRun
from headway.clock import SystemClock
from headway.errors import RunFailed
from headway.launch.worker_exit import failed_facts
from headway.spec.target_file import Target
from headway.state.run_directory import Journal, RunDirectory
from support.fake_kube import FakeKube, fake_kube

TARGET = Target.model_validate(
    {
        "kube": {"namespace": "ml"},
        "image": "registry.example/headway@sha256:" + "0" * 64,
        "storage": {"claim": "fs"},
    }
)
WHY = "its pod did not start: image it cannot be executed on machine a\nhint: use another image"


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with fake_kube(tmp_path) as kube:
        kube.job("it", suspend=True)
        yield kube


@pytest.fixture
def run(kube: FakeKube, tmp_path: Path) -> TargetRun:
    return TargetRun("it", "lab", TARGET, tmp_path, str(tmp_path / "runs"))


def noted(run: TargetRun) -> Journal:
    directory = RunDirectory.create(run.location, SystemClock())
    journal = Journal(directory.launcher, SystemClock())
    journal.note("launched", generation=1, nodes=1, workers=1, device="cpu", mode="script")
    return journal


def test_why_is_the_commands_error(run: TargetRun) -> None:
    """The keeper has suspended the Job, and has ended: what it noted is in the storage."""
    noted(run).note("failed", **failed_facts(0, WHY, "", 1))
    with pytest.raises(RunFailed) as caught:
        wait_until_training(run)
    assert "cannot be executed on machine a" in caught.value.message
    assert caught.value.hint == "use another image"


def test_one_that_was_only_stopped_is_no_failure(
    run: TargetRun, capsys: pytest.CaptureFixture[str]
) -> None:
    noted(run)
    wait_until_training(run)
    assert "run it was stopped on lab before its first step" in capsys.readouterr().err
