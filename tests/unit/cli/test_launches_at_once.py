"""Two commands that launch the same run at about the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.errors import Exit
from headway.kube.names import LAUNCHING, QUEUE
from support.fake_kube import FakeKube, fake_kube
from support.in_process import Headway
from support.kept_run import JOBS
from support.launchable import write_launchable


@pytest.fixture
def folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_launchable(folder, monkeypatch)
    return folder


@pytest.fixture
def kube(folder: Path) -> Iterator[FakeKube]:
    with fake_kube(folder) as kube:
        yield kube


@pytest.mark.trap(28)
def test_a_run_that_somebody_else_creates_first_is_left_alone(
    headway: Headway, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(call: str) -> None:
        if call in (f"POST {JOBS}", f"PATCH {JOBS}/headway-it") and not theirs(kube):
            kube.job("it")
            kube.coordinator("it")

    before_each_call(kube, monkeypatch, meanwhile)
    said = headway("run", "--on", "lab")
    assert said.exit_code == Exit.BAD_INPUT
    assert said.err.splitlines()[-1] == (
        "hint: somebody else has just launched run it: headway status it --on lab"
    )
    assert theirs(kube)["spec"]["suspend"] is False
    assert f"DELETE {JOBS}/headway-it" not in kube.calls


def test_a_run_that_somebody_else_launches_during_the_upload_is_left_alone(
    headway: Headway, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube.job("it", suspend=True)

    def meanwhile(call: str) -> None:
        if call == f"GET {JOBS}/headway-it" and call in kube.calls:
            kube.job("it")
            kube.coordinator("it")

    before_each_call(kube, monkeypatch, meanwhile)
    said = headway("run", "--on", "lab")
    assert said.exit_code == Exit.STILL_RUNNING
    assert "error: run it is already running on lab\n" in said.err
    assert theirs(kube)["spec"]["suspend"] is False


def test_a_run_that_somebody_else_is_launching_is_left_alone(
    headway: Headway, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Job is there, suspended, and nothing else yet."""
    kube.job("it", suspend=True)
    theirs(kube)["metadata"]["annotations"] = {LAUNCHING: "true"}

    def meanwhile(call: str) -> None:
        looks = sum(one == f"GET {JOBS}/headway-it" for one in kube.calls)
        if call == f"GET {JOBS}/headway-it" and looks == 3:
            kube.coordinator("it")
            theirs(kube)["metadata"]["annotations"] = {}
            theirs(kube)["spec"]["suspend"] = False

    before_each_call(kube, monkeypatch, meanwhile)
    said = headway("run", "--on", "lab")
    assert said.exit_code == Exit.STILL_RUNNING
    assert "another command is launching run it, or was interrupted: waiting" in said.err
    assert "error: run it is already running on lab\n" in said.err
    assert f"DELETE {JOBS}/headway-it" not in kube.calls


def test_a_queued_run_of_an_older_headway_is_left_alone(headway: Headway, kube: FakeKube) -> None:
    """Its coordinator is a Job, and no ReplicaSet."""
    kube.job("it", suspend=True, queue="research")
    kube.job("it-coordinator")
    said = headway("run", "--on", "lab")
    assert said.exit_code == Exit.STILL_RUNNING
    assert "error: run it is already waiting on lab, in queue research\n" in said.err
    assert theirs(kube)["metadata"]["labels"][QUEUE] == "research"
    assert f"DELETE {JOBS}/headway-it" not in kube.calls


@pytest.mark.parametrize("is_admitted", [True, False])
def test_a_queued_run_whose_launch_was_killed_at_the_very_end_is_left_alone(
    headway: Headway, kube: FakeKube, is_admitted: bool
) -> None:
    """All was made, and only the mark is left; weeks later it may still be training."""
    kube.job("it", suspend=not is_admitted, queue="research")
    kube.coordinator("it")
    theirs(kube)["metadata"]["annotations"] = {LAUNCHING: "true"}
    said = headway("run", "--on", "lab")
    assert said.exit_code == Exit.STILL_RUNNING
    assert "error: run it is already " in said.err
    assert f"DELETE {JOBS}/headway-it" not in kube.calls


@pytest.mark.parametrize("how", ["refused", "away"])
def test_a_launch_that_ends_with_an_error_leaves_nothing_to_wait_for(
    headway: Headway, kube: FakeKube, how: str
) -> None:
    call = "POST /api/v1/namespaces/ml/services"
    if how == "away":
        kube.failing[call] = 1
    else:
        kube.refusing[call] = [(422, "no")]
    said = headway("run", "--on", "lab")
    assert "Service headway-it" in said.err
    assert theirs(kube) == {}


@pytest.mark.trap(22)
@pytest.mark.parametrize("end", ["Complete", "Failed"])
def test_a_job_that_has_ended_makes_way_for_the_next_launch(
    headway: Headway, kube: FakeKube, end: str
) -> None:
    kube.job("it", conditions=[{"type": end, "status": "True"}])
    theirs(kube)["metadata"]["uid"] = "of the one before"
    kube.job_status = {"conditions": [{"type": "Complete", "status": "True"}]}
    said = headway("run", "--on", "lab")
    assert said.exit_code == 0, said.err
    assert f"DELETE {JOBS}/headway-it" in kube.calls
    assert theirs(kube)["metadata"]["uid"] != "of the one before"


def theirs(kube: FakeKube) -> dict[str, Any]:
    return kube.objects.get(f"{JOBS}/headway-it", {})


def before_each_call(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[str], None]
) -> None:
    answer = kube.answer

    def answer_later(method: str, where: str, content: bytes, headers: Any) -> tuple[int, bytes]:
        meanwhile(f"{method} {where.partition('?')[0]}")
        return answer(method, where, content, headers)

    monkeypatch.setattr(kube, "answer", answer_later)
