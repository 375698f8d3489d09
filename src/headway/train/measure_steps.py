"""`python -m headway.train.measure_steps JOB RANK`: a few steps of a run, timed.

Started by `headway plan --measure`, as many times as the run has workers. JOB is a file with the
directories of copies of the run, the file at which the workers meet, and for how many seconds to
measure each, at least and at most. The first worker prints a line of JSON for each: seconds of its
steps after those that warm up.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from headway.state.run_directory import RunDirectory
from headway.train.device import synchronize
from headway.train.trial import Trial

WARMUP_STEPS = 2
MIN_STEPS, MAX_STEPS = 5, 200


def measure(job: dict[str, Any], run: str, rank: int) -> list[float]:
    """COLLECTIVE. Five steps or more, and fewer if there is no time for them, but at least one."""
    resolved = RunDirectory.open(run).read_spec()
    torch.set_num_threads(resolved.threads)
    trial = Trial(resolved, rank=rank, store=Path(job["store"] + Path(run).name))
    began = time.perf_counter()
    found: list[float] = []
    warmups = 0
    while True:
        seconds = _step_seconds(trial)
        if warmups < WARMUP_STEPS:
            warmups += 1
        else:
            found.append(seconds)
        spent = time.perf_counter() - began
        is_late = spent + seconds > job["most_seconds"]
        is_enough = len(found) >= MIN_STEPS and sum(found) > job["least_seconds"]
        # COLLECTIVE: all end after the same step.
        if trial.world.any(is_enough or is_late or len(found) == MAX_STEPS):
            break
    trial.close()
    # The second warm-up is better than nothing.
    return found or [seconds]


def _step_seconds(trial: Trial) -> float:
    began = time.perf_counter()
    trial.advance()
    synchronize(trial.world.device)  # SYNC
    return time.perf_counter() - began


def main(job: dict[str, Any], rank: int) -> None:
    for run in job["runs"]:
        seconds = measure(job, run, rank)
        if rank == 0:
            print(json.dumps({"seconds": seconds}), flush=True)
        gc.collect()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2]))
