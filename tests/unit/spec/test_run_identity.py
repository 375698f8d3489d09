"""What may change under a run's name, and what may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.spec.key_suggestions import key_paths
from headway.spec.load import load_run
from headway.spec.run_file import RunFile
from headway.spec.run_identity import OPERATION, changed_identity, is_operation

IDENTITY = {
    "model",
    "objective",
    "data",
    "batch",
    "train_for",
    "optimizer",
    "schedule",
    "precision",
    "seed",
    "threads",
    "guard",
    "memory.compile",
}
"""Written down once more, so that a new key of the run file is decided on and not forgotten."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text("version: 1\nextends: gpt2-small\ndata: {train: prepared}\n")
    return path


def changes(file: Path, *overrides: str) -> list[str]:
    return changed_identity(load_run(file).run, load_run(file, list(overrides)).run)


def within(path: str, keys: set[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:length]) in keys for length in range(1, len(parts) + 1))


def test_every_key_is_one_or_the_other() -> None:
    paths = list(key_paths(RunFile))
    assert set(paths) >= OPERATION, "a key of OPERATION that does not exist"
    leaves = [path for path in paths if not any(p.startswith(f"{path}.") for p in paths)]
    for path in leaves:
        anyway = path.startswith("data.validation") or (
            path.startswith("data.train.") and path.endswith((".anonymous", ".allow_unreadable"))
        )
        expected = not within(path, IDENTITY) or anyway
        assert is_operation(path) is expected, f"{path}: identity or operation?"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("optimizer.lr=1e-3", "optimizer.lr: 0.0006 -> 0.001"),
        ("seed=17", "seed: 0 -> 17"),
        ("batch.global=256", "batch.global: 512 -> 256"),
        ("batch.micro=2", "batch.micro: auto -> 2"),
        ("train_for=10B tokens", "train_for: 300B tokens -> 10B tokens"),
        ("schedule.warmup=5%", "schedule.warmup: 715 steps -> 5%"),
        ("model.config.n_layer=2", "model.config.n_layer: 12 -> 2"),
        ("model.config.extra=2", "model.config.extra: None -> 2"),
        ("data.train=other", "data.train.path: prepared -> other"),
        ("data.sequence_length=512", "data.sequence_length: 1024 -> 512"),
        ("objective=masked", "objective.type: causal -> masked"),
        ("precision=fp32", "precision: bf16 -> fp32"),
        ("threads=4", "threads: auto -> 4"),
        ("guard.loss_spike=off", "guard.loss_spike: 6.0 -> off"),
        ("optimizer.betas=[0.8, 0.9]", "optimizer.betas: (0.9, 0.95) -> (0.8, 0.9)"),
    ],
)
def test_a_changed_identity_is_named(file: Path, override: str, named: str) -> None:
    assert changes(file, override) == [named]


@pytest.mark.parametrize(
    "override",
    [
        "name=other",
        "checkpoint.every=1min",
        "checkpoint.keep.last=1",
        "evaluation.every=10 steps",
        "data.validation.wiki=other",
        "resources.accelerators=cpu:2",
        "budget.usd=5",
        "storage=/big/disk",
        "track=[]",
        "shard=node",
        "secrets=[HF_TOKEN]",
    ],
)
def test_how_it_is_operated_is_free(file: Path, override: str) -> None:
    assert changes(file, override) == []


def test_another_way_to_write_the_same_is_no_change(file: Path) -> None:
    assert changes(file, "train_for=0.3T tokens", "optimizer.lr=0.0006", "batch.global=512") == []
    assert changes(file, "objective={type: causal}", "data.train={path: prepared}") == []


def test_a_teacher_that_was_not_there(file: Path) -> None:
    assert changes(file, "objective={type: distill, teacher: gpt2}") == [
        "objective.teacher.from: None -> gpt2",
        "objective.type: causal -> distill",
    ]
