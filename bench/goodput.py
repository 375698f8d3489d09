"""`make bench-goodput MINUTES=30`: a run of four workers with steps of about half a second, and one
fault a minute by SEED=1: how much of the time goes into steps that count, and where the rest goes.

Two figures: the run's own, as `headway status` shows it, and one computed only from the times of
its steps: their number times the usual interval, over the time since the launch. The bench reports
the smaller one. Time is lost where an interval is longer than usual. It is attributed to the last
fault if the membership changed in it, to a newcomer if one was starting, to a save, else to noise.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from bench.losses import write_run
from headway.clock import seconds_of
from headway.state.rewinds import Record
from support.commands import headway
from support.live import LiveRun
from support.storm import Storm

MINUTES = int(os.environ.get("MINUTES", "30"))
SEED = int(os.environ.get("SEED", "1"))
TARGET = 0.95
NODES = 4
PAUSES = (55.0, 60.0)
"""Choosing a victim takes some seconds of each minute."""
TICK_SECONDS = 0.2
KINDS = ("worker", "leader", "stopped", "leaves", "coordinator", "scaled", "two at once")
SETTINGS = (
    "name=goodput",
    'model.config={"n_layer": 4, "n_head": 4, "n_embd": 256, "n_positions": 128}',
    "data.sequence_length=128",
    "checkpoint.every=5min",
)


@dataclass
class Newcomer:
    name: str
    """What its pod's name begins with."""
    started_at: float
    joined_at: float | None = None
    """None while it waits, or if it was lost before."""
    cpu_seconds: float = 0.0
    """When it was last seen waiting: imports, build, connections."""


class Newcomers:
    """All workers that joined after the first start."""

    def __init__(self, run: LiveRun) -> None:
        self.run = run
        self.all: dict[int, Newcomer] = {}
        """By process id."""

    def look(self) -> None:
        starts: Counter[int] = Counter()
        for event in self.run.directory.launcher.read()[0]:
            if event["event"] == "worker":
                starts[event["node"]] += 1
                name = f"node-{event['node']}.{starts[event['node']]}/"
                if starts[event["node"]] > 1:
                    newcomer = Newcomer(name, seconds_of(event["time"]))
                    self.all.setdefault(event["pid"], newcomer)
        workers = self.run.generation().workers()
        for pid, one in self.all.items():
            if one.joined_at is not None:
                continue
            if any(worker.startswith(one.name) for worker in workers):
                one.joined_at = time.time()
                continue
            with suppress(psutil.NoSuchProcess):
                spent = psutil.Process(pid).cpu_times()
                one.cpu_seconds = spent.user + spent.system


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="headway-goodput-") as scratch:
        folder = Path(scratch)
        write_run(folder)
        with LiveRun(folder, "goodput", NODES, *(f"--set={one}" for one in SETTINGS)) as run:
            newcomers = Newcomers(run)
            storm = Storm(
                run,
                NODES,
                SEED,
                kinds=KINDS,
                pauses=PAUSES,
                tick_seconds=TICK_SECONDS,
                watch=newcomers.look,
                say=_say,
            )
            storm.blow(MINUTES)
            storm.finish()
            run.require_exact()
            status = headway("status", "goodput", "--json", folder=folder)
            own = json.loads(status.stdout)["goodput"]
            found = by_intervals(storm, list(newcomers.all.values()))
    figure = min(own["ratio"], found["ratio"])
    line = {
        "name": "bench-goodput",
        "figure": figure,
        "target": TARGET,
        "pass": figure >= TARGET,
        "spread": {
            "minutes": MINUTES,
            "seed": SEED,
            "faults": dict(Counter(fault.kind for fault in storm.faults)),
            "own": own,
            "by_intervals": found,
        },
    }
    print(json.dumps(line))
    return 0


def by_intervals(storm: Storm, newcomers: list[Newcomer]) -> dict[str, Any]:
    """From the times of steps alone; events only give the cause of a long interval."""
    run = storm.run
    steps, events = run.directory.steps(), run.directory.history()
    launched = seconds_of(events[0]["time"])
    times = [seconds_of(line["time"]) for line in steps]
    usual = statistics.median(after - before for before, after in pairwise(times))
    lost: dict[str, float] = {"start": times[0] - launched - usual}
    for before, after in pairwise(steps):
        begin, end = seconds_of(before["time"]), seconds_of(after["time"])
        changes = after["generation"] > before["generation"]
        cause = _cause(begin, end, changes, storm, events, newcomers)
        lost[cause] = lost.get(cause, 0.0) + end - begin - usual
    by_size = sorted(lost.items(), key=lambda one: -one[1])
    joined = [one for one in newcomers if one.joined_at is not None]
    return {
        "ratio": round(len(times) * usual / (times[-1] - launched), 4),
        "total_seconds": round(times[-1] - launched, 1),
        "steps": len(times),
        "usual_step_seconds": round(usual, 3),
        "lost_seconds": {cause: round(seconds, 2) for cause, seconds in by_size},
        "first_imports_seconds": round(_first(events, "worker") - launched, 2),
        "newcomers": {
            "count": len(newcomers),
            "cpu_seconds": _middle([one.cpu_seconds for one in joined]),
            "start_to_member_seconds": _middle(
                [one.joined_at - one.started_at for one in joined if one.joined_at is not None]
            ),
        },
    }


def _cause(
    begin: float,
    end: float,
    changes: bool,
    storm: Storm,
    events: list[Record],
    newcomers: list[Newcomer],
) -> str:
    if changes:
        before = [fault for fault in storm.faults if fault.time < end]
        return f"change after {before[-1].kind}" if before else "change"
    if any(one.started_at < end and begin < (one.joined_at or one.started_at) for one in newcomers):
        return "newcomers start"
    if any(e["event"] == "saving" and begin < seconds_of(e["time"]) <= end for e in events):
        return "saving"
    return "noise"


def _first(events: list[Record], name: str) -> float:
    return next(seconds_of(event["time"]) for event in events if event["event"] == name)


def _middle(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"median": round(statistics.median(values), 3), "longest": round(max(values), 3)}


BEGAN = time.monotonic()


def _say(words: str) -> None:
    print(f"{time.monotonic() - BEGAN:7.1f} s  {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
