"""headway run --warm: a short copy of the run compiles what the run needs, and is deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.cli.target_render import target_plan
from headway.cli.target_run import TargetRun
from headway.cli.warm import shortening, wait_and_delete
from headway.clock import SystemClock
from headway.errors import Exit, RunFailed
from headway.kube.names import labels
from headway.launch.compile_identity import run_facts
from headway.spec.load import load_run, load_target
from headway.state.run_directory import Journal, RunDirectory
from support.clock import Hurried
from support.fake_kube import PODS, FakeKube, fake_kube
from support.in_process import Headway
from support.kept_run import JOBS
from support.launchable import TARGET, write_launchable
from unit.cli.test_launches_at_once import before_each_call

COMPILES = "memory.compile=true"


@pytest.fixture
def folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_launchable(folder, monkeypatch)
    return folder


@pytest.fixture
def kube(folder: Path) -> Iterator[FakeKube]:
    with fake_kube(folder) as kube:
        yield kube


@pytest.mark.trap(16)
@pytest.mark.parametrize(
    "change",
    [
        "train_for=3 epochs",
        "resources.nodes=4..16",
        "batch.micro=2",
        "batch.global=0.5M tokens",
        "schedule.warmup=2k steps",
        "shard=node",
        "shard=2 nodes",
    ],
)
def test_a_few_steps_compile_what_the_whole_run_needs(folder: Path, change: str) -> None:
    """Compiled code is found by these facts."""
    target = load_target("lab", folder)

    def planned(*changes: str) -> dict[str, object]:
        return run_facts(target_plan(load_run(None, [COMPILES, *changes]), target, None).resolved)

    whole = target_plan(load_run(None, [COMPILES, change]), target, None).resolved
    short = shortening(whole)
    assert planned(change, *short) == planned(change)
    resolved = target_plan(load_run(None, [COMPILES, change, *short]), target, None).resolved
    assert resolved.run.train_for.amount == 10
    assert resolved.nodes == (2 if "2 nodes" in change else 1)


@pytest.mark.trap(16)
def test_it_is_deleted_when_it_has_ended(
    headway: Headway, kube: FakeKube, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube.job_status = {"conditions": [{"type": "Complete", "status": "True"}]}
    saved = folder / "claim/runs/it-warm"

    def train(call: str) -> None:
        if call == f"GET {JOBS}/headway-it-warm" and f"POST {JOBS}" in kube.calls:
            directory = RunDirectory.create(saved, SystemClock())
            if not directory.events.read()[0]:
                Journal(directory.events, SystemClock()).note(
                    "compiled", from_cache=0, compiled=3, libraries=4, first_step_seconds=70.0
                )

    before_each_call(kube, monkeypatch, train)
    said = headway("run", "--warm", "--on", "lab", "--set", COMPILES)
    assert said.exit_code == 0, said.err
    assert f"DELETE {JOBS}/headway-it-warm" in kube.calls
    assert f"{JOBS}/headway-it-warm" not in kube.objects
    assert f"{JOBS}/headway-it" not in kube.objects
    assert not saved.exists()
    last = said.err.splitlines()[-1]
    assert last == "warm: 0 graphs from the cache, 3 compiled; first step after 70 s"


def test_one_that_fails_stays_to_be_looked_at(headway: Headway, kube: FakeKube) -> None:
    failed = {"type": "Failed", "status": "True", "message": "its pods fail"}
    kube.job_status = {"conditions": [failed]}
    said = headway("run", "--warm", "--on", "lab", "--set", COMPILES)
    assert said.exit_code == Exit.RUN_FAILED
    assert "hint: headway logs it-warm --on lab; then headway delete it-warm --on lab" in said.err
    assert f"{JOBS}/headway-it-warm" in kube.objects


def test_one_that_does_not_start_is_deleted(kube: FakeKube, folder: Path) -> None:
    """It would wait for its image for ever, and be in the way of the next try."""
    kube.job("it-warm")
    waiting = {"reason": "ErrImagePull", "message": "no such image"}
    metadata = {"name": "it-0", "labels": labels("it-warm", "worker"), "uid": "1"}
    container = {"name": "worker", "image": "it", "imageID": "", "ready": False}
    container |= {"restartCount": 0, "state": {"waiting": waiting}}
    status = {"phase": "Pending", "containerStatuses": [container]}
    kube.put(f"{PODS}/it-0", {"metadata": metadata, "status": status, "spec": {"containers": []}})
    saved = RunDirectory.create(folder / "runs/it-warm", SystemClock())
    target = load_target("lab", folder).target
    run = TargetRun("it-warm", "lab", target, folder, str(folder / "runs"))
    run.cluster.clock = Hurried()
    with pytest.raises(RunFailed, match="the image cannot be pulled") as raised:
        wait_and_delete(run)
    assert str(raised.value.hint).endswith("; run it-warm is deleted; nothing was compiled")
    assert kube.objects == {}
    assert not Path(saved.location).exists()


def test_the_copy_is_of_the_run_with_so_many_nodes(headway: Headway, kube: FakeKube) -> None:
    """As many as it has hold one copy of the model."""
    kube.job_status = {"conditions": [{"type": "Failed", "status": "True", "message": "it fails"}]}
    shared = ("--set", COMPILES, "--set", "shard=all", "--nodes", "3")
    said = headway("run", "--warm", "--on", "lab", *shared)
    assert said.exit_code == Exit.RUN_FAILED, said.err
    assert kube.objects[f"{JOBS}/headway-it-warm"]["spec"]["completions"] == 3


def test_a_run_of_that_name_is_left_alone(headway: Headway, kube: FakeKube, folder: Path) -> None:
    """It may be one of the user's own."""
    saved = folder / "claim/runs/it-warm"
    RunDirectory.create(saved, SystemClock())
    said = headway("run", "--warm", "--on", "lab", "--set", COMPILES)
    assert said.exit_code == Exit.BAD_INPUT, said.err
    assert "there is a run it-warm on lab already" in said.err
    assert "headway delete it-warm --on lab" in said.err
    assert saved.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--warm", "--set", COMPILES], "--warm needs --on"),
        (["--warm", "--on", "lab"], "--warm has nothing to do: memory.compile is off"),
        (["--warm", "--on", "lab", "--extend"], "--extend does nothing with --warm"),
    ],
)
def test_refused(headway: Headway, folder: Path, arguments: list[str], words: str) -> None:
    said = headway("run", *arguments)
    assert said.exit_code == Exit.BAD_INPUT
    assert words in said.err


def test_refused_where_nothing_is_kept(headway: Headway, folder: Path) -> None:
    (folder / "targets.yaml").write_text(f"{TARGET}  compile_cache: off\n")
    said = headway("run", "--warm", "--on", "lab", "--set", COMPILES)
    assert said.exit_code == Exit.BAD_INPUT
    assert "targets.yaml:6" in said.err
    assert "nothing would be kept" in said.err
