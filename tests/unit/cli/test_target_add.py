"""`headway target add` against an API server that answers and refuses as it is told to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.errors import Exit
from headway.launch.api_answers import PAGE
from support.answering_kube import Answering
from support.fake_kube import FakeKube, fake_kube
from support.in_process import Headway

IMAGE = "registry.example/headway@sha256:" + "0" * 64
ADD = ("target", "add", "new", "--image", IMAGE)


@pytest.fixture
def kube(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
    monkeypatch.setenv("COLUMNS", "80")
    with fake_kube(folder) as found:
        yield found


@pytest.fixture
def targets(folder: Path) -> Path:
    return folder / "config" / "headway" / "targets.yaml"


def test_it_is_seen_and_written(headway: Headway, kube: FakeKube, targets: Path) -> None:
    answering = Answering(kube, "eks")
    said = headway(*ADD)
    assert said.exit_code == 0, said.err
    assert f"added target new to {targets}" in said.err
    assert "hint: headway target check new\nhint: headway run --on new\n" in said.err
    assert targets.read_text() == said.out
    found = yaml.safe_load(said.out)["new"]
    assert found["kube"] == {"context": "lab", "namespace": "ml"}
    assert found["storage"] == {"claim": "shared-fs"}
    assert found["resources"] == {"accelerators": "H100:8"}
    assert found["spot_label"] == {"karpenter.sh/capacity-type": "spot"}
    assert {one.split()[0] for one in answering.asked} == {"GET"}


def test_a_run_is_rendered_for_it(headway: Headway, kube: FakeKube, folder: Path) -> None:
    """And refused if it asks for another kind."""
    Answering(kube, "eks")
    assert headway(*ADD).exit_code == 0
    (folder / "run.yaml").write_text(
        "version: 1\nname: wiki\nmodel: {type: gpt2, config: {n_layer: 2, vocab_size: 512}}\n"
        'data: {train: "s3://data/wiki", sequence_length: 128}\nbatch: {global: 16}\n'
    )
    shown = headway("run", "--on", "new", "--dry-run")
    assert shown.exit_code == 0, shown.err
    assert 'nvidia.com/gpu: "8"' in shown.out
    assert 'vpc.amazonaws.com/efa: "32"' in shown.out
    refused = headway("check", "--on", "new", "--set", "resources.accelerators=A100-80GB:8")
    assert refused.exit_code == Exit.BAD_INPUT
    assert "a machine of the target (p5.48xlarge) has H100:8" in refused.err


def test_a_dry_run_prints_the_block_alone(headway: Headway, kube: FakeKube, targets: Path) -> None:
    Answering(kube, "eks")
    said = headway(*ADD, "--dry-run")
    assert (said.exit_code, said.err) == (0, "")
    assert "new" in yaml.safe_load(said.out)
    assert not targets.exists()


def test_a_user_who_sees_only_the_namespace(
    headway: Headway, kube: FakeKube, targets: Path
) -> None:
    Answering(kube, "edit-only")
    said = headway(*ADD)
    assert said.exit_code == 0, said.err
    found = yaml.safe_load(targets.read_text())["new"]
    assert found["pod"]["resources"] == {"cpu": 1, "memory": "2Gi"}
    assert "machine" not in found
    assert "of spot machines; nodes may not be seen" in said.out


def test_what_cannot_be_decided_has_a_command_for_each(
    headway: Headway, kube: FakeKube, targets: Path
) -> None:
    Answering(kube, "gke")
    given = ("--storage", "gs://b/p", "--set", "pod.user=2000")
    said = headway(*ADD, *given)
    assert said.exit_code == Exit.BAD_INPUT
    hints = [line for line in said.err.splitlines() if line.startswith("hint: ")]
    assert hints == [
        f"hint: headway target add new --image {IMAGE} --storage gs://b/p --machine {one} "
        "--set pod.user=2000"
        for one in ("a3-megagpu-8g", "g2-standard-48", "cpu")
    ]
    assert not targets.exists()
    # Each of them works as it is.
    for one in hints:
        again = headway(*one.removeprefix("hint: headway ").split(), "--dry-run")
        assert again.exit_code == 0, again.err


def test_other_keys(headway: Headway, kube: FakeKube) -> None:
    Answering(kube, "eks")
    sets = ("coordinator.resources.memory=1Gi", "pod={user: 2000, resources: {cpu: 8}}")
    said = headway(*ADD, "--dry-run", *(word for one in sets for word in ("--set", one)))
    found = yaml.safe_load(said.out)["new"]
    assert found["coordinator"]["resources"] == {"memory": "1Gi"}
    assert found["pod"]["user"] == 2000
    assert found["pod"]["resources"]["cpu"] == 8
    assert found["pod"]["resources"]["memory"] == "1875Gi"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("pod.usr=1", "unknown key 'usr' in new.pod"),
        ("pod.user", "--set pod.user: write --set key.inner=value"),
        ("pod.user=", "write --set key.inner=value"),
    ],
)
def test_a_key_that_is_wrong(
    headway: Headway, kube: FakeKube, targets: Path, setting: str, says: str
) -> None:
    Answering(kube, "eks")
    said = headway(*ADD, "--set", setting)
    assert said.exit_code == Exit.BAD_INPUT
    assert says in said.err
    assert not targets.exists()


def test_a_name_that_is_taken(headway: Headway, kube: FakeKube, folder: Path) -> None:
    """Before anything is asked."""
    (folder / "targets.yaml").write_text("new: {}\n")
    said = headway(*ADD)
    assert (said.exit_code, kube.calls) == (Exit.BAD_INPUT, [])
    assert said.err.startswith("error: there is a target new already\n")


def test_a_name_that_is_none(headway: Headway, kube: FakeKube, targets: Path) -> None:
    Answering(kube, "eks")
    said = headway("target", "add", "My Lab", "--image", IMAGE)
    assert said.exit_code == Exit.BAD_INPUT
    assert "'My Lab' is not a valid name" in said.err
    assert not targets.exists()


def test_contexts(headway: Headway, kube: FakeKube, folder: Path) -> None:
    said = headway(*ADD, "--context", "other")
    assert said.exit_code == Exit.BAD_INPUT
    assert said.err == (
        "error: your kubeconfig has no context other\nhint: headway target add new --context lab\n"
    )
    Answering(kube, "eks")
    file = folder / "kubeconfig"
    file.write_text(file.read_text().replace("current-context: lab\n", ""))
    assert headway(*ADD, "--dry-run").exit_code == 0  # there is only one


def test_a_cluster_that_does_not_answer(headway: Headway, kube: FakeKube) -> None:
    kube.is_away = True
    said = headway(*ADD)
    assert said.exit_code != 0
    assert "the API server does not answer" in said.err


def test_a_namespace_that_is_not_there(headway: Headway, kube: FakeKube, targets: Path) -> None:
    Answering(kube, "eks")
    said = headway(*ADD, "--namespace", "nobody")
    assert said.exit_code == Exit.BAD_INPUT
    assert said.err.startswith("error: there is no namespace nobody\n")
    assert not targets.exists()


def test_a_server_that_does_not_tell_its_version(headway: Headway, kube: FakeKube) -> None:
    answering = Answering(kube, "edit-only")
    answering.recorded |= {"version": None}
    assert headway(*ADD).exit_code == 0


def test_a_login_that_has_expired(headway: Headway, kube: FakeKube) -> None:
    kube.refusing["GET /version"] = [(401, "Unauthorized")]
    said = headway(*ADD)
    assert said.exit_code == Exit.BAD_INPUT
    assert "you are not logged in to the cluster" in said.err


def test_a_cluster_of_many_nodes_is_read_in_pages(
    headway: Headway, kube: FakeKube, folder: Path
) -> None:
    answering = Answering(kube, "eks")
    nodes = answering.recorded["nodes"]["items"]
    pages = {"": nodes[:3], "two": nodes[3:]}
    rest = answering.answer

    def paged(method: str, where: str, content: bytes, headers: Any) -> tuple[int, bytes]:
        if "/api/v1/nodes" not in where:
            return rest(method, where, content, headers)
        assert f"limit={PAGE}" in where
        is_second = "continue=two" in where
        items = pages["two" if is_second else ""]
        metadata = {} if is_second else {"continue": "two"}
        return 200, json.dumps({"metadata": metadata, "items": items}).encode()

    kube.answer = paged  # type: ignore[method-assign]
    found = yaml.safe_load(headway(*ADD).out)["new"]
    assert found["machine"] == "p5.48xlarge", "it is on the second page"
