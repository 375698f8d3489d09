"""`make bench-old-run`: a run directory with GENERATIONS=10000 generations and 10^6 steps beside a
young one, on an S3 server of this machine (versitygw). A save, a change of members, `status` and
`list` of each, in turns. Ends with one line of JSON.

Real: the server, all requests, and the code that saves, takes over and reads. Made by hand: the
past of both runs, written by the same writers into the folder that the server serves.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import torch
from torch import nn

from headway.clock import SystemClock, stamp
from headway.spec.run_file import GuardConfig, RunFile
from headway.state.chain import Chain
from headway.state.find_run import list_runs
from headway.state.run_directory import Journal, RunDirectory
from headway.state.run_history import HistoryReader
from headway.state.status import read_status, status_of
from headway.train.loss_guard import LossGuard
from headway.train.precision import LossScale
from headway.train.recorder import Recorder
from headway.train.save import CheckpointSaver
from headway.train.world import RankPlacement, World
from support.old_run import BATCH, LENGTH, STEP_SECONDS, Aging, as_in_a_bucket
from support.s3 import credentials, s3_server

GENERATIONS = int(os.environ.get("GENERATIONS", "10000"))
STEPS = int(os.environ.get("STEPS", "100"))
"""Of each generation."""
REPEATS = int(os.environ.get("REPEATS", "20"))
YOUNG = 20
"""Generations of the young one: it has saved four times."""
TARGET = 1.2
FACTS = {"batch": BATCH, "samples": 100, "length": LENGTH, "data": "d", "code": None}
RESOLVED: Any = SimpleNamespace(
    global_batch=BATCH,
    tokens_per_step=BATCH * LENGTH,
    run=SimpleNamespace(track=[], objective=SimpleNamespace(type="causal")),
)


def make(folder: Path, cache: Path, generations: int) -> Aging:
    """Without syncs: a power cut would only spoil the measurement."""
    sync, os.fsync = os.fsync, lambda fd: None
    try:
        RunDirectory.create(folder, SystemClock())
        run = Aging(
            as_in_a_bucket(folder, cache), time.time() - generations * (STEPS * STEP_SECONDS + 0.3)
        )
        run.live(generations, STEPS)
        return run
    finally:
        os.fsync = sync


def small_state(step: int) -> Any:
    """What a training is to saving: two small layers."""
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64))
    return SimpleNamespace(
        resolved=SimpleNamespace(run=RunFile(version=1), global_batch=BATCH),
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        feed=SimpleNamespace(set=SimpleNamespace(digest="d")),
        scale=LossScale("fp32"),
        guard=LossGuard(GuardConfig()),
        step=step,
        committed_in=step,
    )


class Leader:
    """Leads the next generation of a run, as a worker that has not led before."""

    def __init__(self, location: str, step: int) -> None:
        self.directory = RunDirectory.open(location)
        self.step = step
        self.clock = SystemClock()
        self.recorder = Recorder(self.directory, RESOLVED, FACTS, self.clock)
        self.training = small_state(step)
        journal = Journal(self.directory.events, self.clock)
        self.chain = Chain(self.directory, uuid4().hex)
        self.saver = CheckpointSaver(self.directory, self.chain, journal, self.clock, "all")

    def prepare(self) -> None:
        generation = self.chain.start(stamp(self.clock.now())).generation
        self.world = World(0, 2, generation, RankPlacement(torch.device("cpu")))
        self.recorder.begin(self.world, self.step)

    def change(self) -> None:
        self.chain.begin(self.world.generation, self.step, 2, stamp(self.clock.now()))
        self.recorder.catch_up(self.step)

    def save(self) -> None:
        self.saver.begin(self.world)
        self.saver.start(self.training, None)
        self.saver.wait()
        assert self.saver.saved is not None, self.saver.failure


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(location: str, step: int, kept: HistoryReader) -> dict[str, float]:
    leader = Leader(location, step)
    leader.prepare()
    found = {"change": timed(leader.change), "save": timed(leader.save)}
    leader.training.step += 1
    found["next save"] = timed(leader.save)
    now = time.time()
    found["status"] = timed(lambda: read_status(RunDirectory.open(location), now))
    found["status again"] = timed(lambda: status_of(kept.directory, kept.read(), now))
    runs = location.rsplit("/", 1)[0]
    found["list"] = timed(lambda: [read_status(one, now) for one in list_runs(runs)])
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
        with s3_server(scratch / "served") as port:
            os.environ |= credentials(port)
            sizes = {"young": YOUNG, "old": GENERATIONS}
            runs = {}
            for age, generations in sizes.items():
                began = time.monotonic()
                folder = scratch / "served" / "bucket" / age / "it"
                run = make(folder, scratch / age, generations)
                runs[age] = (f"s3://bucket/{age}/it", run.step)
                took = time.monotonic() - began
                print(f"{age}: {generations} generations, step {run.step}, made in {took:.0f} s")
            kept = {
                age: HistoryReader(RunDirectory.open(where)) for age, (where, _) in runs.items()
            }
            rounds = []
            for index in range(REPEATS + 1):
                order = list(runs) if index % 2 else list(runs)[::-1]
                trial = {}
                for age in order:
                    trial[age] = measure(*runs[age], kept[age])
                rounds += [trial] if index else []  # the first opens connections
    return report(rounds)


def report(rounds: list[dict[str, dict[str, float]]]) -> int:
    ratios, spreads = {}, {}
    for operation in rounds[0]["old"]:
        young, old = ([one[age][operation] for one in rounds] for age in ("young", "old"))
        each = sorted(b / a for a, b in zip(young, old, strict=True))
        ratios[operation] = round(statistics.median(old) / statistics.median(young), 3)
        spreads[operation] = [round(each[len(each) // 10], 3), round(each[-1 - len(each) // 10], 3)]
        medians = [f"{1000 * statistics.median(times):.0f} ms" for times in (young, old)]
        print(f"{operation}: young {medians[0]}, old {medians[1]}, {ratios[operation]}")
    figure = max(ratios.values())
    line = {
        "name": "bench-old-run",
        "figure": figure,
        "target": TARGET,
        "pass": figure <= TARGET,
        "spread": spreads,
        "ratios": ratios,
        "generations": GENERATIONS,
        "steps": GENERATIONS * STEPS,
        "repeats": REPEATS,
    }
    print(json.dumps(line))
    return 0 if line["pass"] else 1


if __name__ == "__main__":
    sys.exit(main())
