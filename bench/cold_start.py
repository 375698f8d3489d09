"""`make bench-cold-start`: four workers start from a checkpoint of 1 GB. Bytes that they read of it
together, over its size, and the seconds from their group to the end of restoring.

Four processes as `elastic: restart` has them, gloo over the loopback interface, a folder of this
machine as the store. The first start writes the checkpoint; each of the ROUNDS that follow reads
it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from bench.trial import prepare_set, resolved_trial
from headway.spec.resolve import Resolved
from headway.state.checkpoints import find_checkpoint
from headway.state.run_directory import RunDirectory
from headway.state.store import Store
from headway.train.trial import Trial

ROUNDS = int(os.environ.get("ROUNDS", "5"))
LAYERS = int(os.environ.get("LAYERS", "11"))
WORKERS = 4
TARGET = 1.0

# 11 layers of 7.1M and an embedding of 4096 x 768: 81M parameters, 0.97 GB with the moments.
RUN_FILE = f"""\
version: 1
name: bench
model:
  type: gpt2
  config: {{n_layer: {LAYERS}, n_head: 12, n_embd: 768, n_positions: 64, vocab_size: 4096}}
data: {{train: set, sequence_length: 32}}
batch: {{global: 4, micro: 1}}
train_for: 1000000 steps
elastic: restart
precision: fp32
threads: 1
track: []
evaluation: {{every: 1000000 steps}}
checkpoint: {{every: 1000000 steps}}
"""


def main() -> int:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as scratch:
        folder = Path(scratch)
        (folder / "run.yaml").write_text(RUN_FILE)
        prepare_set(folder, 200_000, 4096)
        resolved = resolved_trial(folder, nodes=WORKERS)
        _start(folder, resolved, 1)
        _, manifest = find_checkpoint(RunDirectory.open(resolved.run_directory))
        size = sum(file.size for file in manifest.files.values())
        rounds = []
        for number in range(ROUNDS):
            found = _start(folder, resolved, number + 2)
            assert {step for step, _, _ in found} == {1}, "all continue from it"
            rounds.append((sum(read for _, read, _ in found), max(took for *_, took in found)))
            print(f"round {number + 1}/{ROUNDS}: {found}", file=sys.stderr)
    ratios = [read / size for read, _ in rounds]
    line = {
        "name": "bench-cold-start",
        "figure": round(statistics.median(ratios), 4),
        "target": TARGET,
        "pass": max(ratios) <= TARGET,
        "spread": [round(min(ratios), 4), round(max(ratios), 4)],
        "seconds": [round(seconds, 2) for _, seconds in rounds],
        "gigabytes": round(size / 1e9, 3),
        "versions": {"torch": torch.__version__},
    }
    print(json.dumps(line))
    return 0


def _start(folder: Path, resolved: Resolved, generation: int) -> list[tuple[int, int, float]]:
    """Of each worker: the step it starts from, bytes read of checkpoints, seconds."""
    context = get_context("spawn")
    answers = context.Queue()
    arguments = (resolved, generation, folder / f"store-{generation}", answers)
    processes = [context.Process(target=_work, args=(rank, *arguments)) for rank in range(WORKERS)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=600) for _ in processes]
    for process in processes:
        process.join(60)
    return found


def _work(rank: int, resolved: Resolved, generation: int, store: Path, answers: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    num_read = _counted_reads()
    began = time.perf_counter()
    trial = Trial(resolved, generation, rank, store)
    took, step = time.perf_counter() - began, trial.run.training.step
    if generation == 1:
        trial.advance()
        assert trial.run.saver.save_now(trial.run.training, None)
    answers.put((step, num_read[0], took))
    trial.world.barrier()
    trial.close()


def _counted_reads() -> list[int]:
    """Of the bytes of checkpoints' tensors that this process reads from now on."""
    num_read, read_into = [0], Store.read_into

    def counted(self: Store, name: str, start: int, places: list[memoryview]) -> int:
        num_read[0] += sum(map(len, places))
        return read_into(self, name, start, places)

    Store.read_into = counted  # type: ignore[method-assign]
    return num_read


if __name__ == "__main__":
    sys.exit(main())
