"""A user's folder with a run file and targets, and what comes of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import main
from headway.cli.on_target import rendered
from headway.kube.manifests import without_key
from headway.spec.load import load_run

KEY = "0123456789abcdef" * 4
Object = dict[str, Any]
Render = Callable[..., list[Object]]

RUN = """\
version: 1
name: wiki
model: {type: gpt2, config: {n_layer: 2, vocab_size: 512}}
data: {train: "s3://data/wiki", sequence_length: 128}
batch: {global: 16}
resources: {accelerators: cpu:1, nodes: 2}
"""
IMAGE = "registry.example/headway@sha256:" + "0" * 64
TARGET = f"""\
lab:
  kube: {{context: lab, namespace: ml}}
  image: {IMAGE}
  storage: {{claim: shared-fs}}
  pod:
    resources: {{cpu: 4, memory: 8Gi}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "run.yaml").write_text(RUN)
    (tmp_path / "targets.yaml").write_text(TARGET)
    return tmp_path


@pytest.fixture
def render(folder: Path) -> Render:
    """All objects of ./run.yaml on ./targets.yaml's lab, as they are shown."""

    def objects(*overrides: str, nodes: int | None = None) -> list[Object]:
        return without_key(rendered(load_run(None, list(overrides)), "lab", nodes, KEY))

    return objects


@dataclass(frozen=True)
class Said:
    exit_code: int
    out: str
    err: str


Headway = Callable[..., Said]


@pytest.fixture
def headway(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Headway:
    def command(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["headway", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Said(int(ended.value.code or 0), *capsys.readouterr())

    return command
