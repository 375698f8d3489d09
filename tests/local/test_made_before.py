"""What earlier versions wrote is read by this one: run directories, checkpoints, prepared sets.

`tests/data/made_before.tar.xz` was made by `make made-before` on 2026-11-19, when the chain and
checksums of lines had come: two sets prepared from `data`, and two runs of 6 steps on them, one on
two nodes, one sharded over two ranks. `expected` has loss and gradient norm of each step when that
version itself extended them to 12. After the first release it is not made again: another file is
added.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support.commands import headway

pytestmark = pytest.mark.local

MADE_BEFORE = Path(__file__).parents[1] / "data" / "made_before.tar.xz"
ROOT = "@ROOT@"
"""Stands in its files for the folder that it was made in."""


@pytest.fixture
def before(tmp_path: Path) -> Path:
    with tarfile.open(MADE_BEFORE) as archive:
        archive.extractall(tmp_path)
    for file in (*tmp_path.glob("runs/*/spec.json"), *tmp_path.glob("prepared/*/recipe.json")):
        file.write_text(file.read_text().replace(ROOT, str(tmp_path)))
    return tmp_path


def test_a_prepared_set_verifies_and_is_not_prepared_again(before: Path) -> None:
    headway("data", "verify", "prepared/train", folder=before)
    manifest = before / "prepared/train/manifest.json"
    content = manifest.read_bytes()
    words = headway(
        *("data", "prepare", "data/train.txt", "data/more.jsonl", "--into", "prepared/train"),
        *("--train-vocab", "320", "--deduplicate", "--hold-out", "10%"),
        folder=before,
    ).stderr
    assert manifest.read_bytes() == content, words


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            "replicated", marks=pytest.mark.long("half a minute; the gate has the sharded")
        ),
        "sharded",
    ],
)
def test_a_run_resumes_and_trains_as_with_the_version_that_started_it(
    before: Path, name: str
) -> None:
    shown = json.loads(headway("status", f"runs/{name}", "--json", folder=before).stdout)
    assert (shown["state"], shown["step"]) == ("finished", 6)
    nodes = "2" if name == "replicated" else "1"
    more = ("--extend", "--set", "train_for=12 steps", "--nodes", nodes)
    headway("run", f"{name}.yaml", *more, folder=before)
    run = before / "runs" / name
    assert json.loads((run / "spec.json").read_text())["loss_in_chunks"] is False
    started = [line for line in _lines(run / "events.jsonl") if line["event"] == "started"]
    assert [line["resumed_from"] for line in started] == [None, 6]
    steps = [line for line in _lines(run / "metrics.jsonl") if "loss" in line]
    expected = json.loads((before / "expected" / f"{name}.json").read_text())
    for step, (loss, grad_norm) in zip(steps, expected, strict=True):
        assert step["loss"] == pytest.approx(loss, rel=1e-6)
        assert step["grad_norm"] == pytest.approx(grad_norm, rel=1e-5)
    headway("ledger", "verify", str(run), folder=before)
    headway("export", str(run), "--into", "exported", folder=before)


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]
