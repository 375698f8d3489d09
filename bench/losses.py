"""`make bench-losses`: each way of losing a worker, REPEATS=20 times, in runs of four workers.

Measured from the fault to the first step that the others commit without the lost one, by the times
of the run's own records; a step's own time is given beside it. KINDS=kill,stop chooses some.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from headway.clock import seconds_of
from headway.data.tiny import stories
from support.commands import HEADWAY
from support.live import LiveRun
from support.netns import Cut, NetworkedRun
from support.waiting import wait_for
from support.workers import resolved_run

REPEATS = int(os.environ.get("REPEATS", "20"))
SEED = int(os.environ.get("SEED", "1"))
NODES = 4
STOP_SECONDS = 20.0
SETTLE_SECONDS = 60.0
RUN_FILE = """\
version: 1
name: losses
model: {type: gpt2, config: {n_layer: 2, n_head: 4, n_embd: 128, n_positions: 64}}
data:
  train: {sources: [text.txt], tokenizer: {train: {vocab: 1000}}}
  sequence_length: 64
batch: {global: 16, micro: 2}
train_for: 1000000 steps
precision: fp32
threads: 1
track: []
evaluation: {every: 1000000 steps}
checkpoint: {every: 200 steps}
"""


@dataclass(frozen=True)
class Kind:
    name: str
    fault: Callable[[LiveRun, random.Random], float]
    """Strikes, and returns when."""
    median: float
    longest: float | None
    """Targets in seconds, beyond a step."""


def main() -> int:
    chosen = os.environ.get("KINDS", "")
    kinds = [kind for kind in KINDS if not chosen or kind.name in chosen.split(",")]
    found = {}
    with tempfile.TemporaryDirectory(prefix="headway-losses-") as scratch:
        folder = Path(scratch)
        (folder / "text.txt").write_text("\n\n".join(stories(400_000, seed=1)))
        (folder / "run.yaml").write_text(RUN_FILE)
        with LiveRun(folder, "losses", NODES) as run:
            run.wait_for_step(20)
            for kind in kinds:
                found[kind.name] = _repeat(run, kind)
            run.stop()
            run.require_exact()
        if not chosen or "cut" in chosen.split(","):
            found["cut"] = _cut(folder)
        if not chosen or "restart" in chosen.split(","):
            found["restart"] = _restart(folder)
    worst = max(found.values(), key=lambda one: one["median"] / one["target_median"])
    line = {
        "name": "bench-losses",
        "figure": worst["median"],
        "target": worst["target_median"],
        "pass": all(one["pass"] for one in found.values()),
        "spread": found,
    }
    print(json.dumps(line))
    return 0


def _repeat(run: LiveRun, kind: Kind) -> dict[str, object]:
    chance = random.Random(f"{SEED}/{kind.name}")
    seconds: list[float] = []
    for number in range(REPEATS):
        run.wait_for_members(NODES, SETTLE_SECONDS)
        run.wait_for_step(run.step + 5)
        time.sleep(chance.random() * _step_seconds(run))  # any point of a step
        struck_at = kind.fault(run, chance)
        seconds.append(first_step_after_change(run, struck_at) - struck_at)
        print(f"{kind.name} {number + 1}/{REPEATS}: {seconds[-1]:.2f} s", file=sys.stderr)
    run.wait_for_members(NODES, SETTLE_SECONDS)
    return _summary(seconds, _step_seconds(run), kind.median, kind.longest)


def _summary(
    seconds: list[float], step: float, median: float, longest: float | None
) -> dict[str, object]:
    found = statistics.median(seconds)
    return {
        "median": round(found, 3),
        "longest": round(max(seconds), 3),
        "step": round(step, 3),
        "target_median": round(median + step, 3),
        "target_longest": None if longest is None else round(longest + step, 3),
        "pass": found <= median + step and (longest is None or max(seconds) <= longest + step),
        "all": [round(one, 2) for one in sorted(seconds)],
    }


def first_step_after_change(run: LiveRun, struck_at: float) -> float:
    """When the first step was committed in a generation that was made after the fault."""

    def found() -> float | None:
        changed = [seconds_of(e["time"]) for e in run.events("changed")]
        changed = [at for at in changed if at > struck_at]
        if not changed:
            return None
        steps = [seconds_of(line["time"]) for line in run.directory.steps()[-200:]]
        return next((at for at in steps if at > changed[0]), None)

    at = wait_for("a step in another generation", found, SETTLE_SECONDS)
    assert at is not None
    return at


def _step_seconds(run: LiveRun) -> float:
    return statistics.median(line["seconds"] for line in run.directory.steps()[-50:])


# Faults


def _kill_one(run: LiveRun, chance: random.Random) -> float:
    run.kill(chance.choice(sorted(run.workers())))
    return time.time()


def _kill_leader(run: LiveRun, chance: random.Random) -> float:
    """The longest member leads, writes, and heals others."""
    workers = run.workers()
    oldest = min(workers, key=lambda place: _started_at(workers[place]))
    run.kill(oldest)
    return time.time()


def _kill_two(run: LiveRun, chance: random.Random) -> float:
    run.kill(*chance.sample(sorted(run.workers()), 2))
    return time.time()


def _kill_while_healing(run: LiveRun, chance: random.Random) -> float:
    """One is killed; the moment its successor is admitted, another is."""
    workers = sorted(run.workers())
    first, second = chance.sample(workers, 2)
    run.kill(first)
    count = len(run.events("changed"))
    wait_for("the loss", lambda: len(run.events("changed")) > count, SETTLE_SECONDS)
    # The successor asks to join about a second later.
    time.sleep(0.8 + chance.random() * 0.6)
    run.kill(second)
    return time.time()


def _kill_newcomer(run: LiveRun, chance: random.Random) -> float:
    first = chance.choice(sorted(run.workers()))
    before = run.workers()[first]
    run.kill(first)
    wait_for("its successor", lambda: run.workers().get(first, before) != before, SETTLE_SECONDS)
    time.sleep(0.9 + chance.random() * 0.6)
    struck_at = time.time()
    run.kill(first)
    return struck_at


def _stop(run: LiveRun, chance: random.Random) -> float:
    place = chance.choice(sorted(run.workers()))
    worker = run.workers()[place]
    os.kill(worker, signal.SIGSTOP)
    struck_at = time.time()
    try:
        first_step_after_change(run, struck_at)
        time.sleep(max(0.0, STOP_SECONDS - (time.time() - struck_at)))
    finally:
        os.kill(worker, signal.SIGCONT)
    return struck_at


def _kill_coordinator_and_worker(run: LiveRun, chance: random.Random) -> float:
    coordinator = run.coordinator()
    assert coordinator is not None
    coordinator.kill()
    return _kill_one(run, chance)


def _join(run: LiveRun, chance: random.Random) -> float:
    """Scaled by one: how long the others were held is in the event of the change."""
    subprocess.run([*HEADWAY, "scale", "--nodes", str(NODES - 1)], cwd=run.folder, check=True)
    run.wait_for_members(NODES - 1, SETTLE_SECONDS)
    run.wait_for_step(run.step + 3)
    subprocess.run([*HEADWAY, "scale", "--nodes", str(NODES)], cwd=run.folder, check=True)
    run.wait_for_members(NODES, SETTLE_SECONDS)
    newest = run.events("changed")[-1]
    assert not newest["discarded"], newest
    return seconds_of(newest["time"]) - newest["seconds"]


def _leave(run: LiveRun, chance: random.Random) -> float:
    place = chance.choice(sorted(run.workers()))
    os.kill(run.workers()[place], signal.SIGTERM)
    run.wait_for_members(NODES - 1, SETTLE_SECONDS)
    newest = run.events("changed")[-1]
    assert not newest["discarded"], newest
    return seconds_of(newest["time"]) - newest["seconds"]


def _started_at(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


KINDS = (
    Kind("kill", _kill_one, 1.0, 3.0),
    Kind("kill leader", _kill_leader, 1.0, 3.0),
    Kind("kill two", _kill_two, 1.0, 3.0),
    Kind("kill while healing", _kill_while_healing, 4.0, 4.0),
    Kind("kill newcomer", _kill_newcomer, 4.0, 4.0),
    Kind("stop", _stop, 2.0, None),
    Kind("coordinator and worker", _kill_coordinator_and_worker, 4.0, None),
    Kind("join", _join, 0.5, None),
    Kind("leave", _leave, 0.5, None),
)


def _cut(folder: Path) -> dict[str, object]:
    """Workers in network namespaces of their own, one of them cut off without a word."""
    chance = random.Random(f"{SEED}/cut")
    seconds = []
    sets = {"train": next((folder / "prepared").glob("train-*"))}
    resolved = resolved_run(folder, sets, nodes=NODES - 1, overrides=["name=cut"])
    with NetworkedRun(resolved) as run:
        run.wait_for_step(20)
        for number in range(REPEATS):
            run.wait_for_members(NODES - 1, SETTLE_SECONDS)
            run.wait_for_step(run.step + 5)
            node = chance.randrange(NODES - 1)
            with Cut(node):
                struck_at = time.time()
                seconds.append(first_step_after_change(run, struck_at) - struck_at)
                print(f"cut {number + 1}/{REPEATS}: {seconds[-1]:.2f} s", file=sys.stderr)
                time.sleep(chance.random() * 5)
        run.wait_for_members(NODES - 1, SETTLE_SECONDS)
        step = _step_seconds(run)
        run.stop()
        run.require_exact()
    return _summary(seconds, step, 2.5, None)


def _restart(folder: Path) -> dict[str, object]:
    """One domain: its worker is killed, and starts again from the newest checkpoint."""
    options = [f"--set={one}" for one in LARGER]
    seconds: list[float] = []
    with LiveRun(folder, "larger", 1, *options) as run:
        reached = 12
        for number in range(REPEATS):
            run.wait_for_step(reached + 2)  # further than before: else it is given up
            reached = run.step
            run.kill((0, 0))
            struck_at = time.time()
            seconds.append(_first_step_after_start(run, struck_at) - struck_at)
            print(f"restart {number + 1}/{REPEATS}: {seconds[-1]:.2f} s", file=sys.stderr)
        step = _step_seconds(run)
        run.stop()
        run.require_exact()
    return _summary(seconds, step, 6.0 - step, None)


def _first_step_after_start(run: LiveRun, struck_at: float) -> float:
    def found() -> float | None:
        lines = [line for line in run.directory.metrics.read()[0] if "time" in line]
        return next((at for line in lines if (at := seconds_of(line["time"])) > struck_at), None)

    at = wait_for("a step after the restart", found, SETTLE_SECONDS)
    assert at is not None
    return at


LARGER = (
    "name=larger",
    'model.config={"n_layer": 8, "n_head": 8, "n_embd": 512, "n_positions": 64}',
    "batch.global=2",
    "threads=2",
    "checkpoint.every=10 steps",
)
"""25M parameters."""


if __name__ == "__main__":
    sys.exit(main())
