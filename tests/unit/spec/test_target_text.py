"""A target is written below what is in the file, and the file is never made worse."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from headway.errors import BadInput
from headway.spec.target_text import TargetLine, append_target, read_targets, target_block

OLD = """\
# our cluster; ask Jane before you change it
old:   {kube: {namespace: ml}}   # the old one
# nobody uses this
"""


def block(name: str = "new", *more: TargetLine) -> str:
    lines = [
        TargetLine(("kube", "namespace"), "ml", "of the context"),
        TargetLine(("pod", "resources", "cpu"), 4, "free"),
        TargetLine(("pod", "env", "FLAG"), "true", "a word that YAML would take for another type"),
        *more,
    ]
    return target_block(name, lines, "written by a test")


def test_what_it_reads_like() -> None:
    assert block() == (
        "# written by a test\n"
        "new:\n"
        "  kube:\n"
        "    namespace: ml                       # of the context\n"
        "  pod:\n"
        "    resources:\n"
        "      cpu: 4                            # free\n"
        "    env:\n"
        "      FLAG: 'true'  # a word that YAML would take for another type\n"
    )


def test_comments_of_others_stay(tmp_path: Path) -> None:
    file = tmp_path / "targets.yaml"
    file.write_text(OLD)
    append_target(file, "new", block())
    assert file.read_text() == f"{OLD}\n{block()}"
    assert list(read_targets(file.read_text(), "it").root) == ["old", "new"]
    assert os.listdir(tmp_path) == ["targets.yaml"]


def test_of_two_at_the_same_time_none_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "targets.yaml"
    names = [f"lab-{number}" for number in range(12)]
    together = Barrier(len(names))

    def add(name: str) -> None:
        together.wait(60)
        append_target(file, name, block(name))

    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(add, names))
    assert set(read_targets(file.read_text(), "it").root) == set(names)
    assert os.listdir(tmp_path) == ["targets.yaml"]


@pytest.mark.parametrize("there", [None, "", "# only a comment", "\n"])
def test_a_first_target(tmp_path: Path, there: str | None) -> None:
    file = tmp_path / "deep" / "targets.yaml"
    if there is not None:
        file.parent.mkdir()
        file.write_text(there)
    append_target(file, "new", block())
    assert file.read_text().startswith(there or "")
    assert list(read_targets(file.read_text(), "it").root) == ["new"]


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ("new: {}\n", "has a target new already"),
        ("old: {kube: {namespac: ml}}\n", "unknown key 'namespac'"),
        ("old: {kube: {namespace: ml}\n", "targets.yaml"),
        ("{old: {kube: {namespace: ml}}}\n", "cannot be added to"),
        ("  old: {kube: {namespace: ml}}\n", "cannot be added to"),
        ("---\nold: {}\n...\n", "cannot be added to"),
        ("old: {python: '3.12', image: |\n", "targets.yaml"),
    ],
)
def test_nothing_is_written_if_it_would_not_read_back(
    tmp_path: Path, there: str, says: str
) -> None:
    file = tmp_path / "targets.yaml"
    file.write_text(there)
    with pytest.raises(BadInput) as caught:
        append_target(file, "new", block())
    assert says in str(caught.value)
    assert file.read_text() == there
    assert os.listdir(tmp_path) == ["targets.yaml"]


def test_a_wrong_target_is_refused_as_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "targets.yaml"
    file.write_text(OLD)
    wrong = block("new", TargetLine(("pod", "usr"), 1, ""))
    with pytest.raises(BadInput, match=r"new target new:.*unknown key 'usr' in new.pod"):
        append_target(file, "new", wrong)
    assert file.read_text() == OLD


def test_a_link_stays_a_link_and_rights_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "dotfiles" / "targets.yaml", tmp_path / "targets.yaml"
    file.parent.mkdir()
    file.write_text(OLD)
    file.chmod(0o600)
    link.symlink_to(file)
    append_target(link, "new", block())
    assert link.is_symlink()
    assert file.read_text().startswith(OLD)
    assert file.stat().st_mode & 0o777 == 0o600


def test_what_is_set_last_counts() -> None:
    text = block("new", TargetLine(("pod", "resources", "cpu"), 8, "--set"))
    assert read_targets(text, "it").root["new"].pod.resources["cpu"] == "8"
    label = TargetLine(("spot_label",), {"a/b": "spot"}, "seen")
    joined = target_block("new", [label, TargetLine(("spot_label", "a/b"), "yes", "--set")], "it")
    assert read_targets(joined, "it").root["new"].spot_label == {"a/b": "yes"}
