"""A user's folder with a run file and targets, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway.cli.target_render import rendered
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
def folder(folder: Path) -> Path:
    (folder / "run.yaml").write_text(RUN)
    (folder / "targets.yaml").write_text(TARGET)
    return folder


@pytest.fixture
def render(folder: Path) -> Render:
    """All objects of ./run.yaml on ./targets.yaml's lab, as they are shown."""

    def objects(*overrides: str, nodes: int | None = None) -> list[Object]:
        return without_key(rendered(load_run(None, list(overrides)), "lab", nodes, KEY))

    return objects
