"""headway delete --uploaded: with a run goes what was uploaded for it, and nothing of others."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from headway.clock import SystemClock
from headway.errors import Exit
from headway.launch.storage_prune import note_used
from headway.state.store import Store
from support.fake_kube import FakeKube, fake_kube
from support.in_process import Headway
from support.token_sets import write_set

RUN = """\
version: 1
name: it
model: {type: gpt2}
data: {train: train, sequence_length: 128}
batch: {global: 4}
code: {path: src}
resources: {accelerators: cpu:1, nodes: 1}
"""
TARGET = """\
lab:
  kube: {context: lab, namespace: ml}
  image: registry.example/headway@sha256:%s
  storage: {claim: shared-fs}
  pod: {resources: {cpu: 4, memory: 8Gi}}
"""
DELETE = ("--on", "lab", "--uploaded", "--yes")


@pytest.fixture
def folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder / "run.yaml").write_text(RUN)
    (folder / "targets.yaml").write_text(TARGET % ("0" * 64))
    (folder / "src").mkdir()
    (folder / "src" / "mine.py").write_text("A = 1\n")
    write_set(folder / "train", [(range(1, 2000), None)])
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return folder


@pytest.fixture
def kube(folder: Path) -> Iterator[FakeKube]:
    with fake_kube(folder) as kube:
        kube.job_status = {"conditions": [{"type": "Complete", "status": "True"}]}
        yield kube


def launch(headway: Headway, name: str = "it", *more: str) -> None:
    """One that ends before anybody looks at it."""
    options = [word for one in (f"name={name}", *more) for word in ("--set", one)]
    said = headway("run", "--on", "lab", *options)
    assert said.exit_code == 0, said.err


def stored(folder: Path) -> list[str]:
    """Files on the claim: KIND/DIGEST of those that runs need, and whatever else there is."""
    files = [path for path in (folder / "claim").rglob("*") if path.is_file()]
    return sorted({"/".join(path.relative_to(folder / "claim").parts[:2]) for path in files})


def kinds(folder: Path) -> set[str]:
    return {name.split("/")[0] for name in stored(folder)}


def test_nothing_is_left(headway: Headway, kube: FakeKube, folder: Path) -> None:
    launch(headway)
    assert kinds(folder) == {"sets", "code", "runs"}
    said = headway("delete", "it", *DELETE)
    assert said.exit_code == 0, said.err
    assert said.err.count("removed sets/") == said.err.count("removed code/2-") == 1
    assert stored(folder) == []
    assert "headway-it" not in kube.named("jobs")


def test_without_the_flag_it_stays(headway: Headway, kube: FakeKube, folder: Path) -> None:
    launch(headway)
    before = stored(folder)
    assert headway("delete", "it", "--on", "lab", "--yes").exit_code == 0
    assert stored(folder) == [name for name in before if name != "runs/it"]
    assert headway("delete", "it", *DELETE).exit_code == 0, "it was the last to use them"
    assert stored(folder) == []
    again = headway("delete", "it", *DELETE)
    assert (again.exit_code, again.err) == (
        Exit.NOT_FOUND,
        "error: there is no run it on lab\nhint: headway list --on lab\n",
    )


def test_code_before_its_last_edit_goes_too(headway: Headway, kube: FakeKube, folder: Path) -> None:
    launch(headway)
    (folder / "src" / "mine.py").write_text("A = 2\n")
    launch(headway)
    assert len([*(folder / "claim" / "code").glob("2-*/")]) == 2
    assert headway("delete", "it", *DELETE).exit_code == 0
    assert stored(folder) == []


def test_what_another_run_names_stays(headway: Headway, kube: FakeKube, folder: Path) -> None:
    launch(headway)
    (folder / "src" / "mine.py").write_text("A = 2\n")
    launch(headway, "other")
    assert headway("delete", "it", *DELETE).exit_code == 0
    assert kinds(folder) == {"sets", "code", "runs"}
    (left,) = (folder / "claim" / "code").glob("2-*/")
    assert (left / "mine.py").read_text() == "A = 2\n"
    assert headway("delete", "it", "other", *DELETE).exit_code == Exit.NOT_FOUND
    assert headway("delete", "other", *DELETE).exit_code == 0
    assert stored(folder) == []


def test_several_at_once(headway: Headway, kube: FakeKube, folder: Path) -> None:
    launch(headway)
    launch(headway, "other")
    said = headway("delete", "it", "other", *DELETE)
    assert said.exit_code == 0, said.err
    assert stored(folder) == []


def test_what_somebody_is_about_to_launch_with_stays(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    launch(headway)
    (path,) = (folder / "claim" / "sets").glob("*/")
    note_used(Store(folder / "claim"), f"sets/{path.name}", SystemClock(), "lab", "theirs")
    said = headway("delete", "it", *DELETE)
    assert said.exit_code == 0
    assert f"kept sets/{path.name}: another launch has used it since" in said.err
    assert kinds(folder) == {"sets"}
    assert (folder / "claim" / "sets" / f"{path.name}.whole").exists()


def test_it_asks_first_with_all_that_would_go(
    headway: Headway, kube: FakeKube, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(headway)
    before = stored(folder)
    monkeypatch.setattr("sys.stdin", StringIO("n\n"))
    said = headway("delete", "it", "--on", "lab", "--uploaded")
    assert said.exit_code != 0
    asked = " ".join(said.err.split())
    assert "run it on lab with all that it saved what no other run of lab uses (sets and" in asked
    assert stored(folder) == before


def test_a_run_of_this_machine_has_uploaded_nothing(headway: Headway, folder: Path) -> None:
    said = headway("delete", "runs/it", "--uploaded", "--yes")
    assert said.exit_code == Exit.BAD_INPUT
    assert "error: --uploaded is for runs on a target, and runs/it is on this machine" in said.err
