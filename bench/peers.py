"""`make bench-peers`: what a snapshot in the memory of the nodes costs training every 10 steps, and
how long a restore from it takes.

Two nodes of one process each share this machine and a model of 173M parameters: with two moments 1
GB a node. A snapshot is taken in the first of every 9 steps, and complete before the last three
(asserted). What it adds to the first six is compared with the three before them and the three
after. The figure is how long training waited: for the snapshot, and, by the scheduler's count, for
a core, of both nodes together, as each waits for the other; the median, as a share of the steps
from one snapshot to the next at `peers: 10 steps`, which are ten less those that pass until one is
complete. The steps' own time is there as well (`extra_seconds`), but the speed of a shared machine
changes from step to step by more than the 1 % that is to be seen. What of that is speed is in the
processor time of the same threads, too, as each step computes the same: `beyond_work` is what a
step takes for a second of it, over that of calm steps. That is the least it costs, and has waits
for the interpreter's lock in it, which the figure has not; caches that the snapshot has emptied are
in the processor time alone (`work_seconds`). Spreads are where a median is in nine of ten draws of
as many rounds (bootstrap). Here both nodes compute, copy, send and receive on the same cores: nodes
of their own have cores to spare. Then one node starts with an empty memory, and both restore from
that of the other.
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
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from bench.trial import prepare_set, resolved_trial
from headway.spec.resolve import Resolved
from headway.train.trial import Trial

ROUNDS = int(os.environ.get("ROUNDS", "16"))
LAYERS = int(os.environ.get("LAYERS", "24"))
SEQUENCES = int(os.environ.get("SEQUENCES", "8"))
NODES = 2
STEPS, CALM_STEPS = 9, 3
"""From one snapshot to the next, and those at the end that it does not reach."""
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
precision: fp32
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
        rounds = _rounds(resolved, folder, Path(memory))
        shutil.rmtree(Path(memory, "1"))  # that node is new
        nodes = Nodes(resolved, folder, Path(memory), generation=2)
        restored = nodes.ask("load")
        nodes.end()
    taken = rounds[1:]
    step_seconds = statistics.median(s for one in rounds for s in one.seconds[-CALM_STEPS:])
    extra = [beyond_calm(before.seconds, one.seconds) for before, one in pairwise(rounds)]
    waited = [
        one.held + beyond_calm(before.core_waits, one.core_waits)
        for before, one in pairwise(rounds)
    ]
    work = [beyond_calm(before.work, one.work) for before, one in pairwise(rounds)]
    beyond_work = [
        beyond_calm(before.per_work, one.per_work) / calm_mean(before.per_work, one.per_work)
        for before, one in pairwise(rounds)
    ]
    lag = statistics.median(one.lag for one in taken)
    between = max(EVERY - lag, lag)
    share = 1 / (between * step_seconds)
    cost = statistics.median(waited) * share
    line = {
        "name": "bench-peers",
        "figure": round(cost, 4),
        "target": TARGET,
        "pass": cost <= TARGET,
        "spread": [round(one * share, 4) for one in spread(waited)],
        "waited_seconds": [round(one, 3) for one in waited],
        "extra_seconds": [round(one, 2) for one in extra],
        "extra_share": round(statistics.median(extra) * share, 4),
        "extra_spread": [round(one * share, 4) for one in spread(extra)],
        "work_seconds": [round(one, 2) for one in work],
        "beyond_work_steps": [round(one, 3) for one in beyond_work],
        "beyond_work_share": round(statistics.median(beyond_work) / between, 4),
        "beyond_work_spread": [round(one / between, 4) for one in spread(beyond_work)],
        "step_seconds": round(step_seconds, 3),
        "held_seconds": [round(one.held, 3) for one in taken],
        "complete_after_steps": [one.lag for one in taken],
        "gigabytes_a_node": round(taken[0].num_bytes / 1e9, 3),
        "restore_seconds": round(max(restored), 2),
        "versions": {"torch": torch.__version__},
    }
    print(json.dumps(line))
    return 0


@dataclass(frozen=True)
class Round:
    """From one snapshot to the next."""

    seconds: list[float]
    """Of each step."""
    held: float
    """Of these, seconds in which training waited for the snapshot."""
    lag: int
    """Steps until all knew that it was complete."""
    core_waits: list[float]
    """Seconds of each step in which threads that train were ready and had no core."""
    work: list[float]
    """Seconds of each step that these threads had a core."""
    num_bytes: int
    """Of a node's part."""

    @property
    def per_work(self) -> list[float]:
        return [seconds / work for seconds, work in zip(self.seconds, self.work, strict=True)]


def beyond_calm(before: list[float], steps: list[float]) -> float:
    """What the first steps have more than the calm ones before and after them."""
    reached = steps[:-CALM_STEPS]
    return sum(reached) - len(reached) * calm_mean(before, steps)


def calm_mean(before: list[float], steps: list[float]) -> float:
    return statistics.mean([*before[-CALM_STEPS:], *steps[-CALM_STEPS:]])


def spread(values: list[float]) -> tuple[float, float]:
    chance = random.Random(1)
    drawn = [statistics.median(chance.choices(values, k=len(values))) for _ in range(2000)]
    low, *_, high = statistics.quantiles(drawn, n=20)
    return low, high


def _rounds(resolved: Resolved, folder: Path, memory: Path) -> list[Round]:
    nodes = Nodes(resolved, folder, memory, generation=1)
    for _ in range(2):  # which make the memory
        nodes.ask("steps")
    rounds = []
    for number in range(ROUNDS + 1):
        seen: list[Round] = nodes.ask("steps")
        slowest = max(seen, key=lambda one: sum(one.seconds))
        lag, held = max(one.lag for one in seen), max(one.held for one in seen)
        core_waits = [sum(each) for each in zip(*(one.core_waits for one in seen), strict=True)]
        work = [sum(each) for each in zip(*(one.work for one in seen), strict=True)]
        rounds.append(Round(slowest.seconds, held, lag, core_waits, work, slowest.num_bytes))
        assert lag <= STEPS - CALM_STEPS, "a snapshot was not complete before the calm steps"
        print(
            f"round {number}/{ROUNDS}: held {held:.3f} s, complete after {lag} steps; steps of "
            f"{' '.join(f'{each:.2f}' for each in slowest.seconds)} s, of which threads waited for "
            f"a core {' '.join(f'{each:.2f}' for each in core_waits)} s, and had one "
            f"{' '.join(f'{each:.2f}' for each in work)} s",
            file=sys.stderr,
        )
    nodes.end()
    return rounds


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

    def ask(self, what: str) -> list[Any]:
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
            pipe.send(trial.run.start_seconds.get("load", 0.0))
        else:
            pipe.send(_steps(trial, memory / str(rank)))


def _steps(trial: Trial, memory: Path) -> Round:
    snapshots: Any = trial.run.snapshots
    held, seconds, core_waits, works = 0.0, [], [], []

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
    snapshots._last_step = None  # so one is due at the first step, and then at none of these
    for _ in range(STEPS):
        began, (worked, waited) = time.perf_counter(), _core_times()
        trial.advance()
        seconds.append(time.perf_counter() - began)
        work, wait = _core_times()
        works.append(work - worked)
        core_waits.append(wait - waited)
    for name in waits:
        delattr(snapshots, name)
    snapshots.wait()
    assert not snapshots.has_failed
    assert snapshots._num_failures == 0
    size = max(file.stat().st_size for file in memory.glob("*.safetensors"))
    return Round(seconds, held, snapshots._lag, core_waits, works, size)


def _core_times() -> tuple[float, float]:
    """Seconds that the threads of this process, but for those of snapshots, had a core, and were
    ready to run and had none."""
    work = wait = 0
    for task in Path("/proc/self/task").iterdir():
        if os.sched_getscheduler(int(task.name)) != os.SCHED_IDLE:
            worked, waited, _ = (task / "schedstat").read_text().split()
            work, wait = work + int(worked), wait + int(waited)
    return work / 1e9, wait / 1e9


if __name__ == "__main__":
    sys.exit(main())
