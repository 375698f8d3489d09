"""`make bench-many`: as many workers of a tiny model as fit in GIGABYTES=20, at most MOST=64, real
processes in one gloo group, train together; a quarter of them is killed at once, ROUNDS=3 times,
and comes back.

How many fit is measured first, with a run of four; WORKERS=64 says it instead. The figure is the
number of workers; the ledger of their run has to be exact. Two cores say little about how fast so
many are on machines of their own: the seconds are here to see that nothing waits for a timeout.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.loss_trial import LossTrial
from headway.data.tiny_stories import stories
from support.live import LiveRun
from support.waiting import wait_for

GIGABYTES = float(os.environ.get("GIGABYTES", "20"))
WORKERS = int(os.environ.get("WORKERS", "0"))
MOST = int(os.environ.get("MOST", "64"))
"""128 train together after six minutes on two cores, and a minute after a quarter is killed."""
ROUNDS = int(os.environ.get("ROUNDS", "3"))
SEED = int(os.environ.get("SEED", "1"))
TARGET = 32
PROBED = 4
START_SECONDS = 900.0
SETTLE_SECONDS = 600.0
CALM_STEPS = 5
RUN_FILE = """\
version: 1
name: many
model: {{type: gpt2, config: {{n_layer: 2, n_head: 2, n_embd: 32, n_positions: 32}}}}
data:
  train: {{sources: [text.txt], tokenizer: {{train: {{vocab: 400}}}}}}
  sequence_length: 16
batch: {{global: {batch}, micro: 4}}
train_for: 1000000 steps
precision: fp32
schedule: {{type: constant, warmup: 5 steps}}
threads: 1
track: []
evaluation: {{every: 1000000 steps}}
checkpoint: {{every: 1000 steps}}
"""


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    with tempfile.TemporaryDirectory(prefix="headway-many-") as scratch:
        folder = Path(scratch)
        (folder / "text.txt").write_text("\n\n".join(stories(400_000, seed=1)))
        each, shared = _probe(folder)
        fit = int((GIGABYTES * 1e9 - shared) / each)
        workers = WORKERS or min(MOST, fit)
        say(f"{each / 1e6:.0f} MB a worker, {shared / 1e6:.0f} MB shared: {fit} fit; {workers} run")
        found = _train(folder, workers)
    line = {
        "name": "bench-many",
        "figure": workers,
        "target": TARGET,
        "pass": workers >= TARGET and found["memory_gigabytes"] <= GIGABYTES,
        "spread": {"fit_in_memory": fit, "bytes_each": each, "bytes_shared": shared, **found},
    }
    print(json.dumps(line))
    return 0


def _probe(folder: Path) -> tuple[int, int]:
    """Bytes that are a worker's own, and bytes that all share with the process they were forked
    from."""
    with _launched(folder, "probe", PROBED) as run:
        _settle(run, PROBED)
        pids = list(run.workers().values())
        own = max(_bytes(pid, "Private_Dirty", "Private_Clean") for pid in pids)
        shared = _bytes(pids[0], "Shared_Dirty", "Shared_Clean")
        run.stop()
    return own, shared


def _train(folder: Path, workers: int) -> dict[str, Any]:
    chance, began = random.Random(SEED), time.monotonic()
    rounds = []
    with _launched(folder, "many", workers) as run:
        _settle(run, workers)
        all_in = time.monotonic() - began
        memory = _memory(run)
        say(f"{workers} trained together after {all_in:.1f} s, {memory / 1e9:.1f} GB")
        for _ in range(ROUNDS):
            trial = LossTrial(run, chance)
            trial.kill(*chance.sample(sorted(run.workers()), workers // 4))
            after = trial.next_step(wait_seconds=SETTLE_SECONDS)
            healed = _settle(run, workers) - trial.struck_at
            memory = max(memory, _memory(run))
            rounds.append({"next_step_seconds": after, "all_back_seconds": healed})
            say(f"{workers // 4} killed: {rounds[-1]}")
        steps = [line["seconds"] for line in run.directory.steps()]
        run.stop()
        run.require_exact()
        assert not run.events("diverged"), run.events("diverged")
        changes = [(event["workers"], event["seconds"]) for event in run.events("changed")]
    return {
        "memory_gigabytes": round(memory / 1e9, 2),
        "first_steps_after_seconds": round(all_in, 1),
        "step_seconds": round(statistics.median(steps), 3),
        "steps": len(steps),
        "killed_at_once": workers // 4,
        "changes": changes,
        **{name: [round(one[name], 2) for one in rounds] for name in rounds[0]},
        "ledger": "exact",
    }


def _launched(folder: Path, name: str, workers: int) -> LiveRun:
    (folder / "run.yaml").write_text(RUN_FILE.format(batch=4 * workers))
    return LiveRun(folder, name, workers, f"--set=name={name}")


def _settle(run: LiveRun, workers: int) -> float:
    """Until all have trained together for some steps; when the first of these was committed."""

    def is_settled() -> bool:
        assert run.process.poll() is None, run.end()
        last = run.directory.ledger.last() or {}
        return last.get("members") == workers and len(run.workers()) == workers

    wait_for(f"{workers} members", is_settled, START_SECONDS if run.step == 0 else SETTLE_SECONDS)
    at = time.time()
    run.wait_for_step(run.step + CALM_STEPS, SETTLE_SECONDS)
    return at


def _memory(run: LiveRun) -> int:
    """Of all workers; a page that several share counts once."""
    return sum(_bytes(pid, "Pss") for pid in run.workers().values())


def _bytes(pid: int, *names: str) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.split(":")[0] in names)


BEGAN = time.monotonic()


def say(words: str) -> None:
    print(f"{time.monotonic() - BEGAN:7.1f} s  {words}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
