"""`make chaos FAULTS=200 SEED=1`: faults in a run of four nodes, a fifth of them in a run whose
nodes shard the model over two workers each. Ends with one line of JSON; a run with problems is
kept."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from headway.clock import seconds_of
from headway.state.ledger import verify_ledger
from headway.state.run_directory import RunDirectory
from support.live import LiveRun
from support.storm import KINDS, Fault, Storm
from support.stormed import left_behind, problems_of, undisturbed, write_run

FAULTS = int(os.environ.get("FAULTS", "200"))
SEED = int(os.environ.get("SEED", "1"))
ONLY = os.environ.get("ONLY")
"""Kinds of faults, separated by commas; all by default."""
KEEPS = bool(os.environ.get("KEEP"))
"""Keep a run without problems, too."""
SHARDED = FAULTS // 5
COMPARED_STEPS = 300


def main() -> int:
    folder = write_run(Path(tempfile.mkdtemp(prefix="headway-chaos-")))
    say(f"an undisturbed run of {COMPARED_STEPS} steps, in {folder}")
    alone = undisturbed(folder, COMPARED_STEPS)
    storms = {
        "replicated": (4, 1, FAULTS - SHARDED, ()),
        "sharded": (3, 2, SHARDED, ("shard=node", "resources.accelerators=cpu:2")),
    }
    survived, problems, spread = 0, [], {}
    for name, (nodes, ranks, faults, settings) in storms.items():
        if faults:
            done, found, told = blow(folder, alone, name, nodes, ranks, faults, settings)
            survived += done
            problems += found
            spread[name] = told
    is_good = survived == FAULTS and not problems
    if is_good and not KEEPS:
        shutil.rmtree(folder)
    else:
        say(f"the runs are kept in {folder}")
    verdict = {
        "name": "chaos",
        "figure": survived,
        "target": FAULTS,
        "pass": is_good,
        "spread": {"seed": SEED, "problems": problems, **spread},
    }
    print(json.dumps(verdict))
    return 0 if is_good else 1


def blow(
    folder: Path,
    alone: RunDirectory,
    name: str,
    nodes: int,
    ranks: int,
    faults: int,
    settings: tuple[str, ...],
) -> tuple[int, list[str], dict[str, Any]]:
    """One storm: faults survived, problems found, figures."""
    options = [word for setting in (f"name={name}", *settings) for word in ("--set", setting)]
    say(f"{name}: {nodes} nodes, {faults} faults, seed {SEED}")
    with LiveRun(folder, name, nodes, *options) as run:
        kinds = ONLY.split(",") if ONLY else KINDS
        storm = Storm(run, nodes, SEED, ranks=ranks, kinds=kinds, say=say)
        try:
            storm.blow(faults)
            storm.finish()
        except AssertionError as error:
            say(f"{name}: {error}")
            return storm.survived, [f"{name}: {error}"], {}
        problems = [f"{name}: {problem}" for problem in problems_of(storm, alone)]
        for problem in problems:
            say(problem)
        told = figures(storm, alone)
        say(f"{name}: {json.dumps(told)}")
        return storm.survived, problems, told


def figures(storm: Storm, alone: RunDirectory) -> dict[str, Any]:
    run = storm.run
    steps = [seconds_of(line["time"]) for line in run.directory.steps()]
    pauses = [end - begin for begin, end in pairwise(steps)]
    verdict = verify_ledger(run.directory.ledger.read()[0])
    return {
        "faults": len(storm.faults),
        "steps": len(steps),
        "generations": verdict.generations,
        "discarded_steps": sum(bool(event["discarded"]) for event in run.events("changed")),
        "rewound_steps": verdict.redone,
        "loss_difference": loss_difference(storm, alone),
        "step_seconds": round(statistics.median(pauses), 3),
        "longest_pause_seconds": round(max(pauses), 3),
        "threads_of_a_worker": [storm.begun["threads"], storm.ended["threads"]],
        "files_of_a_worker": [storm.begun["files"], storm.ended["files"]],
        "left_behind": len(left_behind(storm)),
        "kinds": _by_kind(storm.faults, steps),
    }


def _by_kind(faults: list[Fault], steps: list[float]) -> dict[str, Any]:
    """Seconds from a fault to the next committed step, and the longest time between two steps that
    it has caused: the step in flight is often finished, and the one after it is late. A pause is
    caused by the last fault before the step was due."""
    usual = statistics.median(end - begin for begin, end in pairwise(steps))
    late: list[list[float]] = [[] for _ in faults]
    for begin, end in pairwise(steps):
        causes = [i for i, fault in enumerate(faults) if fault.time < min(end, begin + 2 * usual)]
        if causes:
            late[causes[-1]].append(end - begin)
    next_steps: dict[str, list[float]] = {}
    pauses: dict[str, list[float]] = {}
    for fault, some in zip(faults, late, strict=True):
        after = next(step for step in steps if step > fault.time)
        next_steps.setdefault(fault.kind, []).append(after - fault.time)
        if some:  # else it came in the middle of another's pause
            pauses.setdefault(fault.kind, []).append(max(some))
    return {
        kind: {
            "count": len(next_steps[kind]),
            "next_step_seconds": _spread(next_steps[kind]),
            "pause_seconds": _spread(pauses.get(kind, [])),
        }
        for kind in sorted(next_steps)
    }


def _spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"median": round(statistics.median(values), 3), "longest": round(max(values), 3)}


def loss_difference(storm: Storm, alone: RunDirectory) -> float:
    """The largest difference, over the steps that both have taken."""
    pairs = zip(storm.run.losses(), (line["loss"] for line in alone.steps()), strict=False)
    return max(abs(mine - its) for mine, its in pairs)


BEGAN = time.monotonic()


def say(words: str) -> None:
    print(f"{time.monotonic() - BEGAN:7.1f} s  {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
