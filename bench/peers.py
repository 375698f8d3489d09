"""`make bench-peers`: what a snapshot in the memory of the nodes costs training every 10 steps, and
how long a restore from it takes.

Two nodes of one process each share this machine and a model of 173M parameters: with two moments
1 GB a node. They take turns of 6 steps, with a snapshot after the first and without. All of a
snapshot's work is done within a turn (asserted). What it adds is a turn's time less the mean of the
two turns around it, as the speed of a shared machine changes by more than the 1 % that is to be
seen. The figure is the median of that, as a share of the steps from one snapshot to the next: ten
less those that pass until one is complete. The spread is where it is in nine of ten draws of as
many turns (bootstrap). Here both nodes compute, copy, send and receive on the same cores: nodes of
their own have cores to spare. Then one node starts with an empty memory, and both restore from that
of the other.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.trial import prepare_set, resolved_trial
from headway.spec.resolve import Resolved
from headway.train.trial import Trial

ROUNDS = int(os.environ.get("ROUNDS", "16"))
LAYERS = int(os.environ.get("LAYERS", "24"))
SEQUENCES = int(os.environ.get("SEQUENCES", "8"))
STEPS, NODES = 6, 2
EVERY = 10
"""Steps that are lost at most, in the figure."""
TARGET = 0.01

# A layer of 7.1M parameters, and an embedding of 4096 x 768.
RUN_FILE = """\
version: 1
name: bench
model:
  type: gpt2
  config: {n_layer: %d, n_head: 12, n_embd: 768, n_positions: 128, vocab_size: 4096}
data: {train: set, sequence_length: 128}
batch: {global: %d, micro: 4}
train_for: 1000000 steps
precision: bf16
shard: all
threads: 1
track: []
evaluation: {every: 1000000 steps}
checkpoint: {every: 1000000 steps, peers: 1000000 steps}
"""


def main() -> int:
    with (
        tempfile.TemporaryDirectory() as scratch,
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
    ):
        folder = Path(scratch)
        (folder / "run.yaml").write_text(RUN_FILE % (LAYERS, SEQUENCES))
        prepare_set(folder, 200_000, 4096)
        resolved = resolved_trial(folder, nodes=NODES)
        turns = _turns(resolved, folder, Path(memory))
        shutil.rmtree(Path(memory, "1"))  # that node is new
        nodes = Nodes(resolved, folder, Path(memory), generation=2)
        restored = nodes.ask("load")
        nodes.end()
    plain, taken = turns[::2], turns[1::2]
    step_seconds = statistics.median(turn["seconds"] for turn in plain) / STEPS
    extra = [
        one["seconds"] - (before["seconds"] + after["seconds"]) / 2
        for one, before, after in zip(taken, plain[:-1], plain[1:], strict=True)
    ]
    between = EVERY - statistics.median(turn["lag"] for turn in taken)
    share = 1 / (between * step_seconds)
    cost = statistics.median(extra) * share
    chance = random.Random(1)
    drawn = [statistics.median(chance.choices(extra, k=len(extra))) for _ in range(2000)]
    low, *_, high = statistics.quantiles(drawn, n=20)
    line = {
        "name": "bench-peers",
        "figure": round(cost, 4),
        "target": TARGET,
        "pass": cost <= TARGET,
        "spread": [round(one * share, 4) for one in (low, high)],
        "extra_seconds": [round(one, 2) for one in extra],
        "step_seconds": round(step_seconds, 3),
        "held_seconds": [round(turn["held"], 3) for turn in taken],
        "complete_after_steps": [turn["lag"] for turn in taken],
        "gigabytes_a_node": round(taken[0]["bytes"] / 1e9, 3),
        "restore_seconds": round(max(one["load"] for one in restored), 2),
        "versions": {"torch": torch.__version__},
    }
    print(json.dumps(line))
    return 0


def _turns(resolved: Resolved, folder: Path, memory: Path) -> list[dict[str, float]]:
    nodes = Nodes(resolved, folder, memory, generation=1)
    for kind in ("with", "with", "without"):  # the first ones make the memory
        nodes.ask(kind)
    turns = []
    for number in range(2 * ROUNDS + 1):
        kind = "with" if number % 2 else "without"
        answers = nodes.ask(kind)
        turn = {key: max(one[key] for one in answers) for key in answers[0]}
        assert turn["lag"] < STEPS, "a snapshot was not complete within its turn"
        turns.append(turn)
        print(
            f"turn {number + 1}/{2 * ROUNDS + 1}, {kind} a snapshot: {turn['seconds']:.2f} s, held "
            f"{turn['held']:.3f} s, complete after {turn['lag']:.0f} steps",
            file=sys.stderr,
        )
    nodes.end()
    return turns


class Nodes:
    """One process each, which do what they are asked together."""

    def __init__(self, resolved: Resolved, folder: Path, memory: Path, generation: int) -> None:
        context = get_context("spawn")
        pipes = [context.Pipe() for _ in range(NODES)]
        self._processes = [
            context.Process(
                target=_work,
                args=(rank, resolved, folder, memory, generation, pipes[rank][1]),
                daemon=True,  # ends with this one, also by an assertion
            )
            for rank in range(NODES)
        ]
        for process in self._processes:
            process.start()
        self._pipes = [ours for ours, _ in pipes]

    def ask(self, what: str) -> list[dict[str, float]]:
        for pipe in self._pipes:
            pipe.send(what)
        return [pipe.recv() for pipe in self._pipes]

    def end(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send("end")
            process.join(60)


def _work(
    rank: int, resolved: Resolved, folder: Path, memory: Path, generation: int, pipe: Connection
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["HEADWAY_SNAPSHOTS"] = str(memory / str(rank))
    torch.set_num_threads(1)
    store = folder / f"store-{generation}"
    trial = Trial(resolved, generation=generation, rank=rank, store=store)
    assert trial.run.snapshots is not None
    assert trial.run.snapshots.has_resumed == (generation > 1)
    while (asked := pipe.recv()) != "end":
        if asked == "load":
            pipe.send({"load": trial.run.start_seconds.get("load", 0.0)})
        else:
            pipe.send(_turn(trial, memory / str(rank), is_with=asked == "with"))


def _turn(trial: Trial, memory: Path, is_with: bool) -> dict[str, float]:
    snapshots: Any = trial.run.snapshots
    held, complete_steps = 0.0, 0

    def timed(wait: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            nonlocal held
            began = time.perf_counter()
            wait(*arguments)
            held += time.perf_counter() - began

        return call

    waits = ("after_step", "_wait_for_copy")
    for name in waits:
        setattr(snapshots, name, timed(getattr(snapshots, name)))
    snapshots._last_step = None if is_with else 10**9  # due at the first step, or never
    dist.barrier()
    began = time.perf_counter()
    for _ in range(STEPS):
        trial.advance()
        complete_steps += not snapshots.is_done
    seconds = time.perf_counter() - began
    for name in waits:
        delattr(snapshots, name)
    snapshots.wait()
    assert not snapshots.is_off
    size = max((file.stat().st_size for file in memory.glob("*.safetensors")), default=0)
    return {"seconds": seconds, "held": held, "lag": complete_steps, "bytes": size}


if __name__ == "__main__":
    sys.exit(main())
