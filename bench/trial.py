"""A small run for a bench: text made here, and prepared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from headway.clock import SystemClock
from headway.data.prepare.job import PrepareJob, prepare
from headway.data.tiny_stories import stories
from headway.data.tokenizer import TokenizerSource
from headway.launch.hardware import this_machine
from headway.spec.load import load_run
from headway.spec.resolve import Resolved, resolve
from headway.state.run_directory import RunDirectory

SET = "set"
NO_DROPOUT: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def gpt2_run_file(shape: Mapping[str, int], batch: int, threads: int) -> str:
    """A run that a bare loop can be compared with: no dropout, one micro-batch, and nothing but
    steps."""
    return f"""\
version: 1
name: bench
model: {{type: gpt2, config: {json.dumps({**shape, **NO_DROPOUT})}}}
data: {{train: {SET}, sequence_length: {shape["n_positions"]}}}
batch: {{global: {batch}, micro: {batch}}}
train_for: 1000000 steps
optimizer: {{lr: 3e-4, betas: [0.9, 0.95], weight_decay: 0.1, max_grad_norm: 1.0}}
schedule: {{type: constant, warmup: 0 steps}}
evaluation: {{every: 1000000 steps}}
checkpoint: {{every: 1000000 steps}}
threads: {threads}
"""


def prepare_set(folder: Path, num_bytes: int, vocabulary: int) -> Path:
    """A set of so much text in `folder/set`."""
    (folder / "text.txt").write_text("\n\n".join(stories(num_bytes, seed=1)))
    job = PrepareJob(
        ["text.txt"], TokenizerSource(train_vocab=vocabulary), str(folder / SET), folder
    )
    prepare(job, lambda progress: None, SystemClock())
    return folder / SET


def resolved_trial(folder: Path, *overrides: str, nodes: int = 1) -> Resolved:
    """The run file in `folder` on the set beside it, its directory made and its threads pinned."""
    resolved = resolve(
        load_run(folder, list(overrides)),
        this_machine(),
        nodes=nodes,
        parameters=None,
        train_set=folder / SET,
        validation_sets={},
    )
    torch.set_num_threads(resolved.threads)
    RunDirectory.create(resolved.run_directory, SystemClock()).write_spec(resolved)
    return resolved
