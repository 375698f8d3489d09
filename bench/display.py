"""`make bench-display`: processor time that metrics and the terminal add to a step of `tiny`.

Measured call by call, on one thread: recording a step (metrics and ledger), and what the launcher
does for its bar in the time of a step: looks ten times a second, reads each new step once, and
draws a frame four times a second. Samples are taken at evaluations only, and not counted here.
"""

from __future__ import annotations

import json
import os
import pty
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from bench.trial import prepare_set, resolved_trial
from headway.cli.progress import DRAW_SECONDS, RunProgress
from headway.clock import SystemClock
from headway.launch.worker_processes import POLL_SECONDS
from headway.state.run_directory import Journal, RunDirectory
from headway.train.trial import Trial

STEPS = int(os.environ.get("STEPS", "30"))
CALLS = 200
TARGET = 0.005
RUN_FILE = """\
version: 1
name: bench
extends: tiny
data: {train: set, validation: {}}
threads: 1
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "run.yaml").write_text(RUN_FILE)
        prepare_set(folder, 500_000, 1024)
        steps, records = _steps(folder)
        looks = _looks(folder)
    step = statistics.median(steps)
    record = statistics.median(records)
    added = (
        record
        + looks["step"]
        + step * (looks["idle"] / POLL_SECONDS + (looks["frame"] - looks["idle"]) / DRAW_SECONDS)
    )
    line = {
        "name": "bench-display",
        "figure": round(added / step, 5),
        "target": TARGET,
        "pass": added / step <= TARGET,
        "spread": [round(added / max(steps), 5), round(added / min(steps), 5)],
        "step_ms": round(1e3 * step, 2),
        "record_us": round(1e6 * record, 1),
        **{f"{name}_us": round(1e6 * seconds, 1) for name, seconds in looks.items()},
        "unit": "share of a step's processor time",
        "versions": {"torch": torch.__version__},
    }
    print(json.dumps(line))
    return 0


def _steps(folder: Path) -> tuple[list[float], list[float]]:
    """Processor seconds of steps, and of what records them."""
    trial = Trial(resolved_trial(folder))
    records: list[float] = []
    recorder: Any = trial.run.recorder
    plain = recorder.step

    def timed(*arguments: Any) -> None:
        records.append(_seconds(lambda: plain(*arguments)))

    recorder.step = timed
    steps = [_seconds(trial.advance) for _ in range(STEPS)]
    return steps[3:], records[3:]


def _looks(folder: Path) -> dict[str, float]:
    """Processor seconds of the launcher's calls, on a terminal that somebody reads."""
    master, slave = pty.openpty()
    Thread(target=_drain, args=(master,), daemon=True).start()
    os.environ["TERM"] = "xterm"
    before, sys.stderr = sys.stderr, os.fdopen(slave, "w")
    try:
        return _calls(RunDirectory.create(folder / "shown", SystemClock()))
    finally:
        sys.stderr = before


def _calls(directory: RunDirectory) -> dict[str, float]:
    progress = RunProgress(directory, SystemClock())
    newest = {"total_steps": 10**6, "tokens_per_step": 2048, "parameters": 10**6, "workers": 1}
    facts = {"step": 0, "resumed_from": None, "device": "cpu", "no_mfu": None}
    Journal(directory.events, SystemClock()).note("started", **newest, **facts)
    line = {"loss": 2.5, "lr": 2e-3, "grad_norm": 1.0, "seconds": 0.1, "data_seconds": 0.0}
    found: dict[str, list[float]] = {"idle": [], "step": [], "frame": []}
    for step in range(1, CALLS + 1):
        stamp = f"2026-11-17T01:{step // 60:02d}:{step % 60:02d}.000Z"
        directory.metrics.append({"step": step, "time": stamp, "tokens": step, **line})
        progress.drawn_at = time.monotonic()  # no frame is due
        with_step = _seconds(progress.show)
        progress.drawn_at = time.monotonic()
        found["idle"].append(_seconds(progress.show))
        found["step"].append(max(0.0, with_step - found["idle"][-1]))
        progress.drawn_at = -DRAW_SECONDS
        found["frame"].append(_seconds(progress.show))
    progress.close()
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def _seconds(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began


def _drain(terminal: int) -> None:
    with suppress(OSError):  # its other end is closed
        while os.read(terminal, 65536):
            pass


if __name__ == "__main__":
    sys.exit(main())
