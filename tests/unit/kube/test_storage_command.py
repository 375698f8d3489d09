"""headway target storage, over a fake API server and a claim that a pod serves."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.errors import Exit
from headway.kube.manifests import manifests
from headway.spec.load import load_target
from headway.spec.resolve import Resolved
from headway.state.store import Store
from support.fake_kube import FakeKube, fake_kube

Headway = Callable[..., Any]
Render = Callable[..., list[Any]]
KEY = "0123456789abcdef" * 4
PATHS = {
    "Job": "/apis/batch/v1/namespaces/ml/jobs",
    "ConfigMap": "/api/v1/namespaces/ml/configmaps",
}


@pytest.fixture
def kube(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeKube]:
    there = tmp_path_factory.mktemp("cluster")
    monkeypatch.setenv("KUBECONFIG", str(there / "kubeconfig"))
    targets = folder / "targets.yaml"
    targets.write_text(targets.read_text().replace("context: lab, ", ""))
    claim = Store(there / "claim")
    with fake_kube(there) as made:
        claim.write("sets/1-aa/tokens", b"x" * 2000)
        claim.write("sets/1-aa.whole", b"{}")
        claim.write("code/2-bb/mine.py", b"x = 1\n")
        yield made


def objects_with(shown: list[Any], digest: str) -> list[Any]:
    """The objects of a run whose set has this digest."""
    (spec,) = (one["data"]["spec.json"] for one in shown if "spec.json" in one.get("data", {}))
    train_set = f"/headway/storage/sets/{digest}"
    resolved = Resolved.model_validate_json(spec).model_copy(update={"train_set": train_set})
    return manifests(resolved, load_target("lab", Path.cwd()).target, KEY)


def launch(kube: FakeKube, objects: list[Any]) -> None:
    for one in objects:
        if one["kind"] in PATHS:
            kube.put(f"{PATHS[one['kind']]}/{one['metadata']['name']}", {**one, "status": {}})


def test_what_is_uploaded_is_listed_with_the_runs_that_name_it(
    headway: Headway, kube: FakeKube, render: Render
) -> None:
    launch(kube, objects_with(render(), "1-aa"))
    shown = headway("target", "storage", "lab")
    assert shown.exit_code == 0, shown
    rows = [line.split() for line in shown.out.splitlines()]
    assert rows == [
        ["KIND", "DIGEST", "FILES", "SIZE", "RUNS"],
        ["sets", "1-aa", "1", "2", "kB", "wiki"],
        ["code", "2-bb", "1", "6", "bytes", "(incomplete)"],
    ]
    listed = json.loads(headway("target", "storage", "lab", "--json").out)
    assert [(one["digest"], one["runs"]) for one in listed] == [("1-aa", ["wiki"]), ("2-bb", [])]


def test_a_run_whose_spec_is_missing_is_an_error_since_its_sets_would_seem_unused(
    headway: Headway, kube: FakeKube, render: Render
) -> None:
    launch(kube, objects_with(render(), "1-aa"))
    (spec,) = (path for path in kube.objects if "/configmaps/headway-wiki-spec-" in path)
    del kube.objects[spec]
    shown = headway("target", "storage", "lab")
    assert shown.exit_code == Exit.NOT_FOUND, shown
    assert "what run wiki uses is not known" in shown.err


def test_what_nobody_has_used_for_long_is_removed_once_the_user_says_so(
    headway: Headway, kube: FakeKube, render: Render, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = Store(kube._claim)
    used, unused = f"sets/{'a' * 32}", f"sets/{'b' * 32}"
    for name in (used, unused):
        claim.write(f"{name}/tokens", b"x" * 2000)
        claim.write(f"{name}.whole", b"{}")
        claim.write(f"{name}.used", b"2026-01-01T00:00:00.000Z")
    claim.write("runs/old/checkpoints/step-1/weights", b"1")
    launch(kube, objects_with(render(), "a" * 32))
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    shown = headway("target", "prune", "lab")
    assert (shown.exit_code, claim.size(f"{unused}/tokens")) == (1, 2000), shown
    assert "remove 1 folder, 2 kB from the storage of lab?" in shown.err
    before = set(claim.names(""))
    shown = headway("target", "prune", "lab", "--yes")
    assert shown.exit_code == 0, shown
    gone = {f"{unused}{end}" for end in ("/tokens", ".whole", ".used")}
    assert before - set(claim.names("")) == gone
    assert f"removed {unused}" in shown.err
    shown = headway("target", "prune", "lab", "--yes")
    assert "nothing to remove from the storage of lab" in shown.err
    assert not [path for path in kube.objects if "storage-" in path]


def test_the_pod_that_serves_the_claim_is_gone_afterwards(headway: Headway, kube: FakeKube) -> None:
    assert headway("target", "storage", "lab").exit_code == 0
    assert not [path for path in kube.objects if "storage-" in path]
