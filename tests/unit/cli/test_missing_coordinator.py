"""A run whose coordinator's ReplicaSet is gone, or was set to 0 by somebody: its workers train, and
nobody looks after them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.errors import Exit
from support.fake_kube import FakeKube, coordinator_path, fake_kube
from support.in_process import Headway
from support.kept_run import JOBS
from support.launchable import write_launchable

COORDINATOR = coordinator_path("it")
COMPLETE = {"type": "Complete", "status": "True"}
SECRET = "/api/v1/namespaces/ml/secrets/headway-it"
SERVICE = "/api/v1/namespaces/ml/services/headway-it"


@pytest.fixture
def folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_launchable(folder, monkeypatch)
    return folder


@pytest.fixture
def kube(folder: Path, headway: Headway) -> Iterator[FakeKube]:
    """The run is launched, and active."""
    with fake_kube(folder) as kube:
        kube.job_status = {"conditions": [COMPLETE]}  # nobody waits for it to train
        assert headway("run", "--on", "lab").exit_code == 0
        kube.objects[f"{JOBS}/headway-it"]["status"] = {"ready": 2}
        yield kube


def lose_coordinator(kube: FakeKube, how: str) -> None:
    if how == "deleted":
        del kube.objects[COORDINATOR]
    else:
        kube.objects[COORDINATOR]["spec"]["replicas"] = 0


@pytest.mark.parametrize("how", ["deleted", "scaled to 0"])
def test_every_command_names_it(headway: Headway, kube: FakeKube, how: str) -> None:
    assert "no coordinator" not in headway("list", "--on", "lab").out
    assert "no coordinator" not in headway("status", "--on", "lab").out
    lose_coordinator(kube, how)
    assert headway("list", "--on", "lab").out.splitlines()[1:] == [
        "it    active  2/2   no coordinator: headway resume it --on lab"
    ]
    (listed,) = json.loads(headway("list", "--on", "lab", "--json").out)
    assert listed["lacks_coordinator"] is True
    shown = headway("status", "--on", "lab").out
    assert "state       unknown\n" in shown
    assert "warning     it has no coordinator: lost nodes are not replaced, no budget " in shown
    assert "hint        headway resume it --on lab\n" in shown
    assert json.loads(headway("status", "--on", "lab", "--json").out)["cluster"][
        "lacks_coordinator"
    ]
    said = headway("run", "--on", "lab")
    assert said.exit_code == Exit.STILL_RUNNING
    assert said.err.endswith(
        "error: run it is already running on lab, without a coordinator\n"
        "hint: to put it back: headway resume it --on lab\n"
    )


@pytest.mark.parametrize("how", ["deleted", "scaled to 0"])
def test_resume_puts_it_back_and_leaves_the_workers_alone(
    headway: Headway, kube: FakeKube, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: json.dumps(one) for path, one in kube.objects.items()}
    lose_coordinator(kube, how)
    kube.calls.clear()
    end_when_resumed(kube, monkeypatch)
    said = headway("resume", "--on", "lab")
    assert said.exit_code == 0, said.err
    assert "run it had no coordinator: it is put back\n" in said.err
    made = kube.objects[COORDINATOR]
    assert made["spec"]["replicas"] == 1
    assert made["spec"]["template"] == json.loads(before[COORDINATOR])["spec"]["template"]
    (owner,) = made["metadata"]["ownerReferences"]
    assert owner["uid"] == kube.objects[f"{JOBS}/headway-it"]["metadata"]["uid"]
    assert json.dumps(kube.objects[SECRET]) == before[SECRET], "workers have the key that is there"
    assert f"PATCH {JOBS}/headway-it" not in kube.calls


def test_what_was_deleted_with_it_is_put_back_too(
    headway: Headway, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    del kube.objects[COORDINATOR], kube.objects[SERVICE]
    end_when_resumed(kube, monkeypatch)
    assert headway("resume", "--on", "lab").exit_code == 0
    assert SERVICE in kube.objects


def test_a_run_whose_settings_are_gone_with_it_is_launched_again(
    headway: Headway, kube: FakeKube
) -> None:
    del kube.objects[COORDINATOR]
    for path in [path for path in kube.objects if "/configmaps/headway-it-spec-" in path]:
        del kube.objects[path]
    said = headway("resume", "--on", "lab")
    assert said.exit_code == Exit.BAD_INPUT
    assert said.err.endswith(
        "hint: headway stop it --on lab; then headway run --on lab, which resumes from its newest "
        "checkpoint\n"
    )


def test_a_stopped_run_gets_it_back_when_it_is_resumed(
    headway: Headway, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube.objects[f"{JOBS}/headway-it"]["spec"]["suspend"] = True
    del kube.objects[COORDINATOR]
    assert "no coordinator" not in headway("list", "--on", "lab").out, "it needs none"
    end_when_resumed(kube, monkeypatch)
    assert headway("resume", "--on", "lab").exit_code == 0
    assert COORDINATOR in kube.objects
    assert kube.objects[f"{JOBS}/headway-it"]["spec"]["suspend"] is False


def end_when_resumed(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nobody waits for it to train."""
    answer = kube.answer

    def ended(method: str, where: str, *more: object) -> tuple[int, bytes]:
        if where.partition("?")[0].endswith("/scale"):
            kube.objects[f"{JOBS}/headway-it"]["status"] = {"conditions": [COMPLETE]}
        return answer(method, where, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(kube, "answer", ended)
