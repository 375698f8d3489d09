"""`make bench-faults`: Headway and other systems train the same model on this machine, under the
same schedule of faults, for MINUTES=3 each.

SYSTEMS=headway,torchrun and SCENARIOS=15s choose some of systems.py and scenarios.py. Systems take
turns within a scenario, and scenarios within ROUNDS=1. Each trial begins and ends calmly: that
tells what a step takes undisturbed, if faults leave no time to tell. What counts is in
tests/support/fault_judge.py. The others have their own environment, in COMPARE_ENV. RECORD, a file,
keeps each trial as it ends: what it has is not run again. Ends with one line of JSON, of which
`make faults-page` makes the table and the plot of docs/concepts/under-faults.md.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.compare.environment import ENVIRONMENT, make_environment, versions
from bench.faults.order import BATCH
from bench.faults.scenarios import SCENARIOS, Scenario, schedule
from bench.faults.system import System
from bench.faults.systems import SYSTEMS
from support.fault_judge import (
    goodput,
    intervals,
    judge_samples,
    lost_seconds,
    next_steps,
    usual_seconds,
)
from support.stolen_time import stolen_seconds

MINUTES = float(os.environ.get("MINUTES", "3"))
ROUNDS = int(os.environ.get("ROUNDS", "1"))
SEED = int(os.environ.get("SEED", "1"))
CALM_SECONDS = float(os.environ.get("CALM", "20"))
RECORD = os.environ.get("RECORD")
START_SECONDS = 600.0
WARM_STEPS = 15
"""torchrun measures its first save at step 10."""
TARGETS = {"minute": 0.98, "15s": 0.93}
TARGET_NEXT_STEP_SECONDS = 1.0
"""Beyond a step, when half of the workers are lost: the median."""
DEFAULT_SCENARIOS = "minute,15s"
DEFAULT_SYSTEMS = "headway,headway-restart,torchrun,torchft,torchft-sampler,ray,ray-torchft,monarch"
Result = dict[str, Any]


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    systems = os.environ.get("SYSTEMS", DEFAULT_SYSTEMS).split(",")
    chosen = os.environ.get("SCENARIOS", DEFAULT_SCENARIOS).split(",")
    unknown = {*systems} - {*SYSTEMS} | {*chosen} - {*SCENARIOS}
    assert not unknown, f"no such systems or scenarios: {unknown}"
    if not all(_is_ours(system) for system in systems):
        make_environment()
    found: dict[str, dict[str, list[Result]]] = {name: {} for name in chosen}
    kept = _kept()
    for turn in range(ROUNDS):
        for name in chosen:
            for system in systems:
                key = f"{system} {name} {turn}, {MINUTES:g} minutes, seed {SEED}"
                if key not in kept:
                    kept[key] = trial(system, SCENARIOS[name])
                    say(f"{key}: {json.dumps(kept[key])}")
                    _keep(kept)
                found[name].setdefault(system, []).append(kept[key])
    print(json.dumps(summary(found, systems)))
    return 0


def _kept() -> dict[str, Result]:
    if RECORD is None or not Path(RECORD).exists():
        return {}
    kept: dict[str, Result] = json.loads(Path(RECORD).read_text())
    return kept


def _keep(kept: dict[str, Result]) -> None:
    if RECORD is not None:
        Path(RECORD).write_text(json.dumps(kept, indent=1) + "\n")


def summary(found: dict[str, dict[str, list[Result]]], systems: list[str]) -> Result:
    """The figure is Headway's least goodput in relation to a target."""
    ours = {name: by_system.get("headway", []) for name, by_system in found.items()}
    least = {name: min(one["goodput"] for one in all_) for name, all_ in ours.items() if all_}
    held = {name: least[name] >= TARGETS[name] for name in least if name in TARGETS}
    halves = [one["within_a_second"] for one in ours.get("half", [])]
    name = min((one for one in held), key=lambda one: least[one] - TARGETS[one], default=None)
    return {
        "name": "bench-faults",
        "figure": None if name is None else least[name],
        "target": None if name is None else TARGETS[name],
        "pass": bool(least) and all([*held.values(), *halves, *_exact(ours)]),
        "minutes": MINUTES,
        "seed": SEED,
        "versions": {"date": str(datetime.now(UTC).date())}
        | {"Headway" if _is_ours(s) else "the others": versions(_python(s)) for s in systems},
        "spread": found,
    }


def _exact(ours: dict[str, list[Result]]) -> list[bool]:
    return [one["samples"]["exact"] for all_ in ours.values() for one in all_]


def trial(name: str, scenario: Scenario) -> Result:
    folder = Path(tempfile.mkdtemp(prefix=f"headway-faults-{name}-"))  # its logs are kept
    began = time.monotonic()
    run = SYSTEMS[name](folder, scenario, _python(name).parent)
    try:
        settle(run)
        started = time.monotonic() - began
        say(f"{scenario.name}, {name}: all train after {started:.0f} s, in {folder}")
        calm = [calm_time(run)]
        begin, stolen = time.time(), sum(stolen_seconds())
        strikes, killed, loads = [], [], [os.getloadavg()[0]]
        for fault in schedule(scenario, 60 * MINUTES, SEED):
            wait(run, begin + fault.at)
            at, workers = run.strike(fault.machines)
            strikes.append(at)
            killed.append(workers)
            loads.append(os.getloadavg()[0])
        end = begin + 60 * MINUTES
        wait(run, end)
        settle(run)
        calm.append(calm_time(run))
        settings = run.settings()
    finally:
        run.end()
    lines = run.lines()
    before, after = (
        usual_seconds(line for line in lines if first < line.time <= last) for first, last in calm
    )
    times = intervals(lines, strikes, begin, end, (before, after))
    usual = statistics.median(one.usual for one in times)
    samples = judge_samples(lines, run.num_samples())
    ratio = goodput(lines, times, BATCH)
    seconds = next_steps(lines, strikes)
    known = [one for one in seconds if one is not None]
    median = statistics.median(known) if known else None
    return {
        "goodput": round(ratio, 4),
        "workers": scenario.workers,
        "commit": _commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        "load": round(statistics.median(loads), 1),
        "stolen_share": round(
            (sum(stolen_seconds()) - stolen) / (time.time() - begin) / len(stolen_seconds()), 3
        ),
        "faults": len(strikes),
        "killed": sum(killed),
        "step_seconds": round(usual, 3),
        "step_seconds_between_faults": [round(one.usual, 3) for one in times],
        "next_step_median": None if median is None else round(median, 2),
        "next_step_seconds": [None if one is None else round(one, 2) for one in seconds],
        "within_a_second": median is not None and median <= TARGET_NEXT_STEP_SECONDS + usual,
        "lost_seconds": {
            where: round(seconds, 1) for where, seconds in lost_seconds(lines, times).items()
        },
        "redone_steps": run.redone_steps(),
        "samples": {
            "trained": samples.trained,
            "repeated": samples.repeated,
            "lost": samples.lost,
            "finished_epochs": samples.finished_epochs,
            "exact": samples.are_exact,
        },
        "settings": settings,
    }


def _python(system: str) -> Path:
    return Path(sys.executable) if _is_ours(system) else ENVIRONMENT / "bin" / "python"


def _is_ours(system: str) -> bool:
    return system.startswith("headway")


def _commit() -> str:
    words = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def calm_time(run: System) -> tuple[float, float]:
    began = time.time()
    wait(run, began + CALM_SECONDS)
    return began, time.time()


def settle(run: System) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not (run.is_whole() and max(line.step for line in run.lines()) >= WARM_STEPS):
        assert time.monotonic() < deadline, f"not all workers train after {START_SECONDS:.0f} s"
        run.keep()
        time.sleep(1.0)


def wait(run: System, until: float) -> None:
    """What has ended on a machine is started again within a second."""
    while (left := until - time.time()) > 0:
        run.keep()
        time.sleep(min(left, 0.5))


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
