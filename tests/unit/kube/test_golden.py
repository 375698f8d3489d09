"""Whole manifests of a few runs, to be read. HEADWAY_WRITE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway import __version__
from headway.cli.target_render import as_yaml
from support.in_process import Headway

GOLDEN = Path(__file__).parent / "golden"
IMAGE = "registry.example/headway@sha256:" + "0" * 64
MODEL = "model: {type: gpt2, config: {n_layer: 2, vocab_size: 512}}\n"

CPU_CLAIM = (
    "version: 1\nname: wiki\n"
    + MODEL
    + """\
data:
  train: {sources: [text.txt], tokenizer: {train: {vocab: 512}}}
  sequence_length: 128
batch: {global: 16}
resources: {accelerators: cpu:2, nodes: 2..16}
""",
    f"""\
lab:
  kube: {{context: lab, namespace: ml}}
  image: {IMAGE}
  storage: {{claim: shared-fs}}
  pod: {{resources: {{cpu: 4, memory: 8Gi}}}}
""",
)
GPU_BUCKET = (
    "version: 1\nname: wiki\n"
    + MODEL
    + """\
data:
  train: s3://data/wiki
  validation: {held-out: s3://data/wiki-held-out}
  sequence_length: 128
batch: {global: 16}
precision: bf16
code: {path: src}
secrets: [HF_TOKEN, WANDB_API_KEY]
""",
    f"""\
lab:
  kube: {{namespace: ml}}
  image: {IMAGE}
  storage: {{url: "s3://team/headway/", secret: bucket}}
  secret: research-secrets
  resources: {{accelerators: H100:8, spot: all}}
  queue: research
  priority: urgent
  spot_label: {{karpenter.sh/capacity-type: spot}}
  security: baseline
  egress: [10.0.0.0/8, 52.216.0.0/15]
  service_account:
    annotations: {{eks.amazonaws.com/role-arn: "arn:aws:iam::1:role/headway"}}
  coordinator:
    architecture: amd64
    tolerations: [{{key: example.com/system, operator: Exists}}]
    priority_class: coordinators
    do_not_disrupt: false
    resources: {{cpu: 1, memory: 1Gi}}
  pod:
    resources: {{cpu: 96, memory: 1000Gi, rdma/hca: 8}}
    shared_memory: 16Gi
    tolerations: [{{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}}]
    node_selector: {{node.example/gpu: h100}}
    priority_class: research
    scheduler: gang-scheduler
    runtime_class: nvidia
    topology: example.com/network-block
    device_claims: [{{name: nics, template: eight-nics}}]
    init_containers: [{{name: warm-up, image: "registry.example/warm-up:1", command: [warm-up]}}]
    sidecars: [{{name: proxy, image: "registry.example/proxy:1"}}]
    volumes: [{{name: cache, persistentVolumeClaim: {{claimName: hub-cache, readOnly: true}}}}]
    mounts: [{{name: cache, mountPath: /cache, readOnly: true}}]
    env: {{HF_HOME: /cache, HEADWAY_CACHE_BYTES: "1000000000"}}
    labels: {{team: nlp}}
    annotations: {{example.com/cost-centre: "42"}}
    image_pull_secrets: [pull]
    user: 2000
    group: 3000
""",
)
SHARDED_NODE = (
    "version: 1\nname: wiki\n"
    + MODEL
    + """\
data: {train: "gs://data/wiki", sequence_length: 128}
batch: {global: 16}
shard: node
resources: {accelerators: cpu:4, nodes: 3, spot: above_min}
""",
    f"""\
lab:
  image: {IMAGE}
  storage: gs://team/headway
  spot_label: {{cloud.google.com/gke-spot: "true"}}
  pod: {{resources: {{cpu: 7500m, memory: 8Gi}}}}
""",
)
FIXED_ACCOUNTS = (
    CPU_CLAIM[0],
    CPU_CLAIM[1]
    + """\
  queue: research
  service_account: {coordinator: headway-coordinator, name: headway-worker}
""",
)
OWN_IMAGE = (
    CPU_CLAIM[0],
    CPU_CLAIM[1]
    + f"""\
  coordinator: {{image: "registry.example/headway-core@sha256:{"1" * 64}"}}
""",
)
RUNS = {
    "cpu-claim": CPU_CLAIM,
    "gpu-bucket": GPU_BUCKET,
    "sharded-node": SHARDED_NODE,
    "fixed-accounts": FIXED_ACCOUNTS,
    "own-image": OWN_IMAGE,
}


@pytest.mark.parametrize("name", RUNS)
def test_golden(name: str, folder: Path, render: Callable[[], list[dict[str, Any]]]) -> None:
    run, targets = RUNS[name]
    (folder / "run.yaml").write_text(run)
    (folder / "targets.yaml").write_text(targets)
    (folder / "src").mkdir()
    (folder / "src" / "mine.py").write_text("x = 1\n")
    require_golden(as_yaml(render()), GOLDEN / f"{name}.yaml")


def test_what_an_administrator_applies_once(folder: Path, headway: Headway) -> None:
    (folder / "targets.yaml").write_text(FIXED_ACCOUNTS[1])
    printed = headway("target", "rbac", "lab").out
    require_golden(printed, GOLDEN / "applied_once" / "fixed-accounts.yaml")


def require_golden(made: str, golden: Path) -> None:
    # So that they stay as they are from one version to the next.
    made = re.sub(
        rf'(/version|value): "{re.escape(__version__)}"$', r"\1: VERSION", made, flags=re.M
    )
    if os.environ.get("HEADWAY_WRITE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(made)
    assert made == golden.read_text(), "HEADWAY_WRITE_GOLDEN=1 writes it anew, to be read again"
