"""What an example of a launcher needs, so that a run outlives its machines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "launchers"
RESTARTS = {
    "torchrun.sh": ("until torchrun", "--max-restarts=100"),
    "slurm.sbatch": ("--requeue", "{1..100}", "scontrol requeue"),
    "jobset.yaml": ("failurePolicy: {maxRestarts: 100}", "--max-restarts=100"),
    "trainjob.yaml": ("failurePolicy: {maxRestarts: 100}", "backoffLimit: 0"),
    "pytorchjob.yaml": ("maxRestarts: 100", "backoffLimit: 1000", "restartPolicy: OnFailure"),
    "skypilot.yaml": ("max_restarts_on_errors: 100", "--max-restarts=100"),
    "ray_train.py": ("max_failures=100",),
}
"""What starts workers again that were lost, and what starts a launcher again that was."""


@pytest.mark.parametrize("name", RESTARTS)
def test_it_trains_the_run_file_and_restarts_what_is_lost(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    words = " ".join(re.findall(r"-{0,2}\w[\w.-]*", text))
    assert "-m headway.train run.yaml" in words
    assert [part for part in RESTARTS[name] if part not in text] == []


def test_each_is_in_the_guide() -> None:
    guide = (ROOT / "docs/guides/other-launchers.md").read_text()
    linked = set(re.findall(r"\(../../examples/launchers/([\w.]+)\)", guide))
    assert linked == RESTARTS.keys() == {path.name for path in EXAMPLES.iterdir()}


def test_pods_of_all_kinds_share_one_claim() -> None:
    for path in EXAMPLES.glob("*.yaml"):
        if path.name != "skypilot.yaml":
            assert list(yaml.safe_load_all(path.read_text()))
            assert path.read_text().count("claimName: headway") == 1
