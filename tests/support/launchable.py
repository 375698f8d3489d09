"""A run and a target to launch it on, in the user's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.token_sets import write_set

RUN = """\
version: 1
name: it
model: {type: gpt2}
data: {train: train, sequence_length: 128}
batch: {global: 4}
resources: {accelerators: cpu:1, nodes: 2}
"""
IMAGE = "registry.example/headway@sha256:" + "0" * 64
TARGET = f"""\
lab:
  kube: {{context: lab, namespace: ml}}
  image: {IMAGE}
  storage: {{claim: shared-fs}}
  pod: {{resources: {{cpu: 4, memory: 8Gi}}}}
"""


def write_run_and_target(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its set is to be written to `train`."""
    (folder / "run.yaml").write_text(RUN)
    (folder / "targets.yaml").write_text(TARGET)
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))


def write_launchable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run, its set and the target."""
    write_run_and_target(folder, monkeypatch)
    write_set(folder / "train", [(range(1, 2000), None)])
