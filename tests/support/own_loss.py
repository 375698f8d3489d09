"""A run with a loss of the user's own, which reads a file of its code folder."""

from __future__ import annotations

from pathlib import Path

import yaml

LOSS = """\
from pathlib import Path

import torch
from torch.nn import functional as F

from headway import IGNORED, Loss

WEIGHT = float(Path(__file__).with_name("weight.yaml").read_text().split()[1])


def loss(model, batch):
    logits = model(batch.inputs).logits.float()
    counted = (batch.targets != IGNORED).sum()
    text = F.cross_entropy(
        logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return Loss(text, counted, {"weight": torch.tensor(WEIGHT) * counted})
"""


def write_own_loss(folder: Path, num_files: int = 2, imports: str = "") -> None:
    """Beside a run file that has no loss of its own yet: every step's metrics have the `weight` of
    weight.yaml. `imports`: further lines of the module."""
    path = folder / "run.yaml"
    run = yaml.safe_load(path.read_text())
    run |= {"objective": {"call": "mine:loss"}, "code": {"path": "src"}}
    path.write_text(yaml.safe_dump(run, sort_keys=False))
    (folder / "src").mkdir()
    (folder / "src" / "mine.py").write_text(f"{imports}{LOSS}")
    (folder / "src" / "weight.yaml").write_text("weight: 0\n")
    for number in range(num_files - 2):
        (folder / "src" / f"module_{number}.py").write_text(f"value = {number}\n" * 100)
