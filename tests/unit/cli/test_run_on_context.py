"""`headway run --on CONTEXT`: a context of the kubeconfig that has no target gets one."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from headway.cli.new_target import name_for
from headway.errors import Exit
from support.answering_kube import Answering
from support.fake_kube import FakeKube, fake_kube
from support.in_process import Headway
from support.kept_run import JOBS
from support.launchable import IMAGE, write_launchable

OTHER = f"other: {{kube: {{context: lab}}, image: '{IMAGE}'}}\n"
"""A target of the same context has the image: this source names no released one."""


@pytest.fixture
def kube(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    write_launchable(folder, monkeypatch)
    (folder / "targets.yaml").write_text(OTHER)
    with fake_kube(folder) as found:
        yield found


@pytest.fixture
def targets(folder: Path) -> Path:
    return folder / "config" / "headway" / "targets.yaml"


class Terminal(io.StringIO):
    """What a user types."""

    def isatty(self) -> bool:
        return True


def type_in(answers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answers))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")


def test_a_context_gets_a_target_and_the_run_its_objects(
    headway: Headway, kube: FakeKube, targets: Path, folder: Path
) -> None:
    Answering(kube, "test-cluster")
    kube.refusing[f"PATCH {JOBS}/headway-it"] = [(403, "ended here")] * 2
    said = headway("run", "--on", "lab")
    assert f"added target lab to {targets}\n" in said.err
    assert "\n      memory: " in said.err
    assert targets.read_text().startswith("# written by headway run --on lab; edit as you like\n")
    found = yaml.safe_load(targets.read_text())["lab"]
    assert found["kube"] == {"context": "lab", "namespace": "ml"}
    assert (found["image"], found["storage"]) == (IMAGE, {"claim": "shared"})
    assert f"POST {JOBS}" in kube.calls or f"PATCH {JOBS}/headway-it" in kube.calls
    assert (folder / "targets.yaml").read_text() == OTHER

    before = targets.read_text()
    assert "added target" not in headway("run", "--on", "lab").err
    assert targets.read_text() == before


@pytest.mark.parametrize(
    "command", [("check",), ("plan", "run.yaml"), ("run", "--dry-run"), ("check", "--json")]
)
def test_commands_that_only_read_say_what_run_would_add(
    headway: Headway, kube: FakeKube, targets: Path, command: tuple[str, ...]
) -> None:
    answering = Answering(kube, "test-cluster")
    said = headway(*command, "--on", "lab")
    assert said.exit_code == 0, said.err
    assert said.err.count(f"headway run --on lab would add this to {targets}:\n") == 1
    assert "lab:\n  kube:\n    context: lab" in said.err
    assert "written by" not in said.out
    assert not targets.exists()
    assert {one.split()[0] for one in answering.asked} == {"GET"}
    # Once, although several parts of a check need the target.
    assert sum("/claims" in one or "persistentvolumeclaims" in one for one in answering.asked) == 1


def test_without_a_terminal_what_is_open_has_a_command(
    headway: Headway, kube: FakeKube, targets: Path
) -> None:
    Answering(kube, "gke")
    said = headway("run", "--on", "lab")
    assert said.exit_code == Exit.BAD_INPUT
    command = "headway target add lab --context lab --storage gs://BUCKET/PREFIX"
    assert said.err == (
        "error: no claim of namespace ml is bound and can be written by many machines "
        f"(ReadWriteMany)\nhint: {command} --machine a3-megagpu-8g\n"
        "error: machines of 2 types have accelerators: a3-megagpu-8g, g2-standard-48\n"
        f"hint: {command} --machine g2-standard-48\nhint: {command} --machine cpu\n"
    )
    assert not targets.exists()


def test_on_a_terminal_it_is_asked(
    headway: Headway,
    kube: FakeKube,
    targets: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Enter takes the default; a bucket has none, and is asked for until there is one."""
    Answering(kube, "gke", namespace="default")
    file = folder / "kubeconfig"
    file.write_text(file.read_text().replace(", namespace: ml", ""))
    type_in("\n\ngs://b/p\ncpu\n", monkeypatch)
    said = headway("run", "--on", "lab")
    assert "namespace of context lab [default]:" in said.err
    assert "storage, such as gs://BUCKET/PREFIX:" in said.err
    assert "machine [a3-megagpu-8g]:" in said.err
    found = yaml.safe_load(targets.read_text())["lab"]
    assert found["kube"] == {"context": "lab", "namespace": "default"}
    assert (found["storage"], found["machine"]) == ({"url": "gs://b/p"}, "cpu")


def test_a_target_that_is_there_is_used_as_it_is(
    headway: Headway, kube: FakeKube, targets: Path, folder: Path
) -> None:
    (folder / "targets.yaml").write_text("lab: {kube: {context: elsewhere}}\n")
    said = headway("run", "--on", "lab")
    assert "lab.storage: it is missing" in said.err
    assert kube.calls == []
    assert not targets.exists()


ARN = "arn:aws:eks:eu-west-1:123:cluster/lab"


def test_a_context_whose_name_is_none_for_a_target(
    headway: Headway, kube: FakeKube, targets: Path, folder: Path
) -> None:
    Answering(kube, "test-cluster")
    file = folder / "kubeconfig"
    config = file.read_text().replace("contexts: [{name: lab", f"contexts: [{{name: '{ARN}'")
    file.write_text(config)
    (folder / "targets.yaml").write_text(OTHER.replace("context: lab", f"context: '{ARN}'"))
    kube.refusing[f"PATCH {JOBS}/headway-it"] = [(403, "ended here")] * 2
    for _ in range(2):
        headway("run", "--on", ARN)
        assert yaml.safe_load(targets.read_text())["lab"]["kube"]["context"] == ARN
    shown = headway("run", "--on", ARN, "--dry-run")
    assert (shown.exit_code, "would add" in shown.err) == (0, False)

    targets.write_text("lab: {kube: {context: elsewhere}}\n")
    said = headway("run", "--on", ARN)
    assert said.exit_code == Exit.BAD_INPUT
    assert said.err == (
        f"error: context {ARN} needs a target with another name: target lab is for another one\n"
        f"hint: headway target add NAME --context {ARN}\n"
    )


def test_a_name_that_is_neither_lists_the_contexts(headway: Headway, kube: FakeKube) -> None:
    said = headway("run", "--on", "lba")
    assert said.exit_code == Exit.NOT_FOUND
    assert said.err == (
        "error: no target 'lba'\nhint: known targets: other; contexts of your kubeconfig: lab\n"
    )


@pytest.mark.parametrize(
    ("context", "name"),
    [
        ("lab", "lab"),
        (ARN, "lab"),
        ("gke_my-project_europe-west4_big-one", "big-one"),
        ("kubernetes-admin@kubernetes", "kubernetes"),
        ("Lab", "lab"),
        ("x" * 39 + "-" + "y" * 9, "x" * 39),
        ("/", ""),
    ],
)
def test_the_name_of_a_contexts_target(context: str, name: str) -> None:
    assert name_for(context) == name
