"""`python -m headway.train.export_check EXPORT RUN_DIRECTORY SET`: loss of an export on the run's
validation set of that name, as plain transformers loads and computes it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from headway.data.reading.token_set import ReadOptions
from headway.plan.batch_division import num_micro_batches, share_of
from headway.state.run_directory import RunDirectory
from headway.train.evaluate import num_rows
from headway.train.feed import open_feed
from headway.train.objectives import token_loss


@torch.no_grad()
def loss_of_export(export: Path, directory: RunDirectory, name: str) -> float:
    resolved = directory.read_spec()
    model = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32).eval()
    feed = open_feed(resolved, resolved.validation_sets[name], torch.device("cpu"), ReadOptions())
    rows = num_rows(resolved.run.evaluation.sequences, feed.num_samples)
    share = share_of(num_micro_batches(rows, resolved.micro), 1, 1, 0)
    losses = [token_loss(model, batch) for batch in feed.fixed(rows, share)]
    feed.close()
    count = sum(int(loss.count) for loss in losses)
    return sum(float(loss.sum) for loss in losses) / count


if __name__ == "__main__":
    export, location, name = sys.argv[1:]
    print(json.dumps({"loss": loss_of_export(Path(export), RunDirectory.open(location), name)}))
