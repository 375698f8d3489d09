"""`make bench-time-left`: the time left that a run shows after a tenth of it, beside the truth.

Five kinds of real run of the preset `tiny`. Each trains to its end; then `seconds_left`, which the
terminal and `status` show, is asked with the records there were when a tenth of the steps had been
taken. The figure is the largest error, as a part of the truth.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from bench.pictures.runs import END_SECONDS, TINY, made_folder
from headway.clock import seconds_of
from headway.state.run_directory import RunDirectory
from headway.state.time_left import seconds_left
from support.live import LiveRun
from support.stolen_time import Stopwatch

STEPS = int(os.environ.get("STEPS", "200"))
TARGET = 0.2
RARELY = ("evaluation.every=100000 steps", "checkpoint.every=100000 steps")


def main() -> int:
    kinds: dict[str, Callable[[Path], RunDirectory]] = {
        "plain": lambda folder: _ended(_started(folder, "plain", 1, *RARELY)),
        "evaluates every 20 steps": lambda folder: _ended(
            _started(folder, "evaluates", 1, "evaluation.every=20 steps", RARELY[1])
        ),
        "saves every 10 steps": lambda folder: _ended(
            _started(folder, "saves", 1, RARELY[0], "checkpoint.every=10 steps")
        ),
        "two workers, one killed": _killed,
        "stopped and resumed": _resumed,
    }
    rows = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = made_folder(Path(scratch))
        for kind, train in kinds.items():
            watch = Stopwatch()
            rows[kind] = {**_judged(train(folder)), "host_took": round(watch.lost_seconds, 1)}
            print(f"{kind}: {rows[kind]}", file=sys.stderr)
    errors = [abs(row["error"]) for row in rows.values()]
    line = {
        "name": "bench-time-left",
        "figure": max(errors),
        "target": TARGET,
        "pass": max(errors) <= TARGET,
        "spread": rows,
        "steps": STEPS,
        "versions": {"torch": torch.__version__},
    }
    print(json.dumps(line))
    return 0


def _judged(directory: RunDirectory) -> dict[str, float]:
    steps = [record for record in directory.metrics.read(0)[0] if "step" in record]
    events = directory.events.read(0)[0]
    at = next(n for n, record in enumerate(steps) if record["step"] >= STEPS // 10)
    asked = steps[at]["time"]
    shown = seconds_left(steps[: at + 1], [event for event in events if event["time"] <= asked])
    assert shown is not None
    (end,) = [event["time"] for event in events if event["event"] == "finished"]
    truth = seconds_of(end) - seconds_of(asked)
    return {
        "shown": round(shown, 1),
        "truth": round(truth, 1),
        "error": round(shown / truth - 1, 3),
    }


def _started(folder: Path, name: str, nodes: int, *sets: str) -> LiveRun:
    every = (f"name={name}", f"train_for={STEPS} steps", *TINY, *sets)
    return LiveRun(folder, name, nodes, *(f"--set={one}" for one in every))


def _ended(started: LiveRun) -> RunDirectory:
    with started as run:
        run.end(END_SECONDS)
    return run.directory


def _killed(folder: Path) -> RunDirectory:
    with _started(folder, "killed", 2, *RARELY) as run:
        run.wait_for_step(STEPS // 40, END_SECONDS)
        run.kill((1, 0))
        run.end(END_SECONDS)
    return run.directory


def _resumed(folder: Path) -> RunDirectory:
    with _started(folder, "resumed", 1, *RARELY) as run:
        run.wait_for_step(STEPS // 40, END_SECONDS)
        run.process.send_signal(signal.SIGINT)
        run.end(END_SECONDS)
    return _ended(_started(folder, "resumed", 1, *RARELY))


if __name__ == "__main__":
    sys.exit(main())
