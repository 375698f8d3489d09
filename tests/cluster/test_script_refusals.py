"""What a script lacks on a target is named by the command that launches it, and nothing is left.
An image for another processor: test_wrong_architecture.py."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from support.lab import Lab
from support.stolen_time import Stopwatch
from support.wheels import resolve_offline, write_wheel

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.long("eight launches that are refused, some of them after 20 s"),
]

LIMIT_SECONDS = 30.0
"""From the start of the command, pods that must start first included."""


def refusal(lab: Lab, command: str = "[python, train.py]", more: str = "") -> str:
    (lab.folder / "run.yaml").write_text(f"version: 1\nname: it\ncommand: {command}\n{more}")
    (lab.folder / "train.py").write_text("import no_such_package\n")
    watch = Stopwatch()
    said = lab.headway("run", "--on", "lab", expect=None).stderr
    seconds = watch.seconds
    print(f"{seconds:.1f} s: {said}")
    assert seconds < LIMIT_SECONDS, said
    assert not lab.headway("list", "--on", "lab").stdout, "its objects are deleted"
    return said


def test_a_script_that_is_not_in_the_code_folder(lab: Lab) -> None:
    assert "there is no file lost.py" in refusal(lab, "[python, lost.py]")


def test_a_secret_that_is_not_there(lab: Lab) -> None:
    secrets = "secrets: [MY_TOKEN]\n"
    assert "the run needs MY_TOKEN" in refusal(lab, more=secrets)
    lab.change_target(secret="mine")
    said = refusal(lab, more=secrets)
    assert f"Secret mine is not in namespace {lab.namespace}" in said
    create = f"kubectl create secret generic mine -n {lab.namespace} --from-literal=MY_TOKEN=VALUE"
    assert f"hint: {create}" in said
    lab.make_secret("mine", {"OTHER": "x"})
    assert "Secret mine of namespace" in (said := refusal(lab, more=secrets))
    assert "has no MY_TOKEN" in said


def test_a_program_that_is_not_in_the_image(lab: Lab) -> None:
    said = refusal(lab, "[no-such-program]")
    assert "no-such-program" in said
    assert "No such file or directory" in said


def test_a_requirement_that_does_not_resolve_or_has_no_wheel(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    write_wheel(wheels, "polite", "1.0", {"polite.py": ""})
    source = tmp_path / "PKG-INFO"
    source.write_text("Metadata-Version: 2.1\nName: raw\nVersion: 1.0\n")
    with tarfile.open(wheels / "raw-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, "raw-1.0/PKG-INFO")
    resolve_offline(monkeypatch, wheels, tmp_path)
    code = "code: {path: ., requirements: requirements.txt}\n"
    for line, reason in (
        ("polite>=2", "only polite==1.0 is available and you require polite>=2"),
        ("absent", "absent was not found"),
        ("raw", "raw==1.0 has no usable wheels"),
    ):
        (lab.folder / "requirements.txt").write_text(f"{line}\n")
        said = refusal(lab, more=code)
        assert "run.yaml:4:17: code.requirements: resolving requirements.txt" in said
        assert f"because {reason}" in said


def test_a_folder_of_2_gb(lab: Lab) -> None:
    with (lab.folder / "weights.bin").open("wb") as file:
        os.truncate(file.fileno(), 2 << 30)
    said = refusal(lab)
    assert "weights.bin" in said
    assert ".headwayignore" in said
