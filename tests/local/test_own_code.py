"""An own model, an own loss with an auxiliary term, own metrics and an own transform, live: the
same numbers on one, two and three nodes, one of which is lost, and every sample once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.commands import headway
from support.live import LiveRun
from support.wheels import resolve_offline, write_wheel

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-code"
STEPS, EVERY = 12, 6
# Seven micro-batches, the last one half padding: neither two nor three workers divide them.
BATCH = ("batch.global=13", "batch.micro=2", "threads=1", "track=[]")
MODEL = ("model.config.width=32", "model.config.layers=2")
SHORT = (f"train_for={STEPS} steps", f"evaluation.every={EVERY} steps", *BATCH, *MODEL)
TRAINED = ("loss", "loss_text", "balance", "grad_norm")
EVALUATED = ("loss", "loss_text", "balance", "accuracy", "accuracy_top5")


def copied_example(folder: Path) -> Path:
    copy = folder / "own-code"
    return shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("runs", "prepared"))


def options(name: str) -> list[str]:
    return [word for one in (f"name={name}", *SHORT) for word in ("--set", one)]


def figures(run: LiveRun) -> dict[str, list[float]]:
    run.require_exact()
    steps, evaluations = run.directory.steps(), run.directory.evaluations.read()[0]
    last = {line["step"]: line for line in evaluations if "loss" in line}
    assert list(last) == [EVERY, STEPS]
    assert len(steps) == STEPS
    trained = {name: [line[name] for line in steps] for name in TRAINED}
    return {**trained, **{f"held-out {n}": [e[n] for e in last.values()] for n in EVALUATED}}


def test_the_same_on_one_two_and_three_nodes_one_of_which_is_lost(tmp_path: Path) -> None:
    folder = copied_example(tmp_path)
    found = {}
    for nodes in (1, 2, 3):
        with LiveRun(folder, f"on-{nodes}", nodes, *options(f"on-{nodes}")) as run:
            if nodes == 3:
                run.wait_for_step(3)
                run.kill((1, 0))
            said = run.end(120.0)
            assert run.process.returncode == 0, said
            found[nodes] = figures(run)
            if nodes == 3:
                members = {
                    line["members"] for line in run.directory.ledger.read()[0] if "first" in line
                }
                assert 2 in members, "nobody was lost"
    for nodes in (2, 3):
        for name, values in found[1].items():
            assert found[nodes][name] == pytest.approx(values, rel=1e-5), (nodes, name)
    alone = found[1]
    assert alone["loss"][-1] < alone["loss"][0] - 0.2, "nothing was learned"
    weighted = [
        text + 0.01 * balance
        for text, balance in zip(alone["loss_text"], alone["balance"], strict=True)
    ]
    assert alone["loss"] == pytest.approx(weighted, rel=1e-6)
    assert all(1.0 <= value <= 4.0 for value in alone["balance"]), "divided by another count"


@pytest.mark.long("three starts; the gate has requirements and frames, each by itself")
def test_a_model_of_a_package_that_the_run_file_requires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by `check --code` and by workers; its lines are among those of an error."""
    folder = copied_example(tmp_path)
    network = (folder / "src" / "network.py").read_text()
    builder = "from company_models.network import Network as build\n"
    package = {"company_models/__init__.py": builder, "company_models/network.py": network}
    write_wheel(tmp_path / "wheels", "company_models", "1.0", package)
    (folder / "requirements.txt").write_text("company-models\n")
    (folder / "src" / "network.py").unlink()
    mine = folder / "src" / "mine.py"
    mine.write_text(mine.read_text().replace("from network", "from company_models.network"))
    resolve_offline(monkeypatch, tmp_path / "wheels", tmp_path)
    run_file = folder / "run.yaml"
    text = run_file.read_text().replace("mine:build", "company_models:build")
    run_file.write_text(text.replace("{path: src}", "{path: src, requirements: requirements.txt}"))
    settings = options("packaged")
    checked = headway("check", "--code", *settings, folder=folder).stdout
    assert "company_models:build built a model of" in checked
    headway("run", *settings, folder=folder)
    small = [*settings, "--set", "model.config.vocab=256", "--set", "name=too-small"]
    said = headway("run", *small, folder=folder, expect=1).stderr
    assert "your code failed in step 1: IndexError: index out of range in self" in said
    assert "  mine.py:21 in loss: " in said
    assert "  company_models/network.py:81 in forward: " in said
    assert "token ids go up to 511, positions to 63" in said
    assert "Traceback" not in said


@pytest.mark.long("the gate has a loss that fails, on one worker")
def test_a_failure_on_one_of_three_is_told_once_with_the_users_frames(tmp_path: Path) -> None:
    """In one micro-batch only: two of the three workers never see it."""
    folder = copied_example(tmp_path)
    mine = folder / "src" / "mine.py"
    there = "    counted = batch.targets != IGNORED  # False in padding rows\n"
    raising = (
        there + "    if not batch.is_real.all():\n        raise ValueError('a padded batch')\n"
    )
    assert there in mine.read_text()
    mine.write_text(mine.read_text().replace(there, raising))
    said = headway("run", "--nodes", "3", *options("fails"), folder=folder, expect=1).stderr
    assert "your code failed in step 1: ValueError: a padded batch" in said
    assert "mine.py:24 in loss: raise ValueError('a padded batch')" in said
    assert "Traceback" not in said
    assert "hint: to try your functions on a tiny batch: headway check --code" in said
