"""`make bench-plan-time SECONDS=200`: how long six runs take on the CPU, as plan says before them
from the steps of a short run, beside how long they took.

A first run of twenty steps prepares the sets and says about how many steps fill SECONDS. Then
`headway plan` of that run says how long so many steps take, evaluations and saves included; and
`headway run` takes them. The figure is the largest error, as a part of the truth. Needs a quiet
machine: what else runs beside a run is in its error. CASES=2,5 chooses some.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headway.data.tiny_stories import stories
from headway.state.run_directory import RunDirectory
from support.commands import headway
from support.stolen_time import Stopwatch

SECONDS = float(os.environ.get("SECONDS", "200"))
CHOSEN = [int(number) for number in os.environ.get("CASES", "").split(",") if number]
TARGET = 0.10
EVALUATIONS, SAVES = 6, 4
"""In each run."""
FIRST_STEPS = 20
RUN_FILE = """\
version: 1
name: planned
model: {type: gpt2, config: {n_layer: 4, n_head: 4, n_embd: 256, n_positions: 128}}
data:
  train: {sources: [train.txt], tokenizer: {train: {vocab: 2048}}}
  validation: {other: {sources: [other.txt]}}
  sequence_length: 128
batch: {global: 16, micro: 8}
precision: fp32
train_for: 1 steps
evaluation: {sequences: 64}
track: []
"""
LLAMA = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
BERT = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


@dataclass(frozen=True)
class Case:
    words: str
    settings: tuple[str, ...] = ()
    nodes: int = 1


def model(type: str, config: dict[str, int], **other: object) -> str:
    return f"model={json.dumps({'type': type, 'config': config, **other})}"


CASES = (
    Case("gpt2, one worker"),
    Case("gpt2, two workers", nodes=2),
    Case(
        "llama in bf16, recomputed",
        (model("llama", LLAMA), "precision=bf16", "memory.checkpoint_activations=true"),
    ),
    Case(
        "qwen3, sharded over two workers",
        (
            model("qwen3", {**LLAMA, "head_dim": 64}),
            "shard=node",
            "resources.accelerators=cpu:2",
        ),
    ),
    Case("bert, masked", (model("bert", BERT), "objective=masked", "batch.micro=16")),
    Case("gpt2, eight micro-batches", ("batch.global=32", "batch.micro=4")),
)


def main() -> int:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="headway-plan-time-") as scratch:
        folder = Path(scratch)
        (folder / "run.yaml").write_text(RUN_FILE)
        (folder / "train.txt").write_text("\n\n".join(stories(2_000_000, seed=1)))
        (folder / "other.txt").write_text("\n\n".join(stories(200_000, seed=2)))
        for number, case in enumerate(CASES, 1):
            if not CHOSEN or number in CHOSEN:
                rows.append(_judged(folder, case, f"case-{number}"))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    worst = max(abs(row["error"]) for row in rows)
    line = {
        "name": "bench-plan-time",
        "figure": worst,
        "target": TARGET,
        "pass": worst <= TARGET,
        "spread": rows,
        "seconds": SECONDS,
        "versions": {"torch": torch.__version__},
    }
    print(json.dumps(line))
    return 0 if worst <= TARGET else 1


def _judged(folder: Path, case: Case, name: str) -> dict[str, Any]:
    nodes = ("--nodes", str(case.nodes))
    _headway(folder, "run", *nodes, *_sets(f"{name}-first", case, f"train_for={FIRST_STEPS} steps"))
    first = statistics.median(_step_seconds(folder, f"{name}-first"))
    steps = max(2 * EVALUATIONS, math.ceil(SECONDS / first))
    longer = (
        f"train_for={steps} steps",
        f"evaluation.every={steps // EVALUATIONS} steps",
        f"checkpoint.every={steps // SAVES} steps",
    )
    options = [f"--set={one}" for one in longer]
    (plan,) = json.loads(_headway(folder, "plan", f"{name}-first", "--json", *options))["plans"]
    predicted = plan["interruptions"]["run_seconds"]
    training = Stopwatch()
    _headway(folder, "run", *nodes, *_sets(name, case, *longer))
    taken = training.wall_seconds
    return {
        "run": case.words,
        "error": round(predicted["value"] / taken - 1, 3),
        "predicted": round(predicted["value"], 1),
        "taken": round(taken, 1),
        "in_range": predicted["low"] <= taken <= predicted["high"],
        "steps": steps,
        "step": round(plan["time"]["step_seconds"]["value"], 4),
        "step_in_run": round(statistics.mean(_step_seconds(folder, name)), 4),
        "host_took": round(training.lost_seconds, 1),
    }


def _sets(name: str, case: Case, *others: str) -> list[str]:
    return [f"--set={one}" for one in (f"name={name}", *case.settings, *others)]


def _headway(folder: Path, *words: str) -> str:
    return headway(*words, folder=folder, seconds=20 * SECONDS + 600).stdout


def _step_seconds(folder: Path, name: str) -> list[float]:
    records = RunDirectory.open(folder / "runs" / name).metrics.read(0)[0]
    return [record["seconds"] for record in records if "seconds" in record]


if __name__ == "__main__":
    sys.exit(main())
