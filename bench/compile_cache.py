"""`make bench-compile`: what the cache of compiled code saves at a start.

A node with blocks of GPT-2 small trains ten steps, REPEATS times with an empty storage and as many
times with what such a node has kept, in turns, each in a process and a folder of its own. The time
is that from the start of its worker to the end of the first step, imports not included; what was
compiled is counted by torch.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from bench.trial import SET, prepare_set
from support.compiling_node import CompilingNode

REPEATS = int(os.environ.get("REPEATS", "5"))
RUN_FILE = """\
version: 1
name: bench
model: {type: gpt2, config: {n_layer: 12, n_head: 12, n_embd: 768, n_positions: 128}}
data: {train: unused, sequence_length: 128}
batch: {global: 1, micro: 1}
train_for: 10 steps
memory: {compile: true}
precision: fp32
track: []
"""


def main() -> int:
    counts: dict[str, list[dict[str, Any]]] = {"empty": [], "warm": []}
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as scratch:
        folder = Path(scratch)
        prepare_set(folder, 200_000, 4096)
        for number in range(REPEATS):
            for kind, found in counts.items():
                node = CompilingNode(
                    folder / f"{kind}-{number}",
                    folder / f"storage-{number}",
                    RUN_FILE,
                    {"train": folder / SET},
                )
                found.append(node.trains())
                print(kind, found[-1], flush=True)
    seconds = {
        kind: sorted(round(one["first_step_seconds"], 1) for one in found)
        for kind, found in counts.items()
    }
    compiled = [one["compiled"] + one["libraries"] for one in counts["warm"]]
    line = {
        "name": "bench-compile",
        "figure": statistics.median(seconds["warm"]),
        "pass": not any(compiled),
        "empty": statistics.median(seconds["empty"]),
        "spread": seconds,
        "graphs": [one["compiled"] for one in counts["empty"]],
        "libraries": [one["libraries"] for one in counts["empty"]],
        "compiled_when_warm": compiled,
        "versions": {"torch": torch.__version__},
    }
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
