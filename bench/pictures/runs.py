"""The runs in the pictures: real ones, of the preset `tiny`, whose workers are killed."""

from __future__ import annotations

import signal
from pathlib import Path

from headway.state.run_directory import RunDirectory
from support.commands import headway
from support.live import LiveRun

NODES = 3
KILLS = 4
RATES = ("3e-4", "1e-3", "3e-3", "1e-2")
END_SECONDS = 900.0
TINY = ("threads=1", "track=[]")


def killed_once(folder: Path) -> RunDirectory:
    """Three workers; one is killed after a third of the steps, and comes back."""
    with _started(folder, "killed", 150) as run:
        run.wait_for_step(45, END_SECONDS)
        run.kill((1, 0))
        run.wait_for_members(NODES, END_SECONDS)
        run.end(END_SECONDS)
        run.require_exact()
    return run.directory


def killed_often(folder: Path) -> RunDirectory:
    """Each kill interrupts it twice: the worker is lost, and it is back. Then it is stopped and
    resumed: a pause and a start. Ten interruptions."""
    with _started(folder, "spot", 240) as run:
        for number in range(KILLS):
            run.wait_for_step(run.step + 20, END_SECONDS)
            run.kill((1 + number % (NODES - 1), 0))
            run.wait_for_members(NODES - 1, END_SECONDS)
            run.wait_for_members(NODES, END_SECONDS)
        run.wait_for_step(run.step + 20, END_SECONDS)
        run.process.send_signal(signal.SIGINT)
        run.end(END_SECONDS)
    with _started(folder, "spot", 240) as again:
        again.end(END_SECONDS)
        again.require_exact()
    return again.directory


def side_by_side(folder: Path) -> list[RunDirectory]:
    """Four runs that differ in the learning rate."""
    found = []
    for rate in RATES:
        name = f"lr-{rate}"
        sets = (f"name={name}", "train_for=60 steps", f"optimizer.lr={rate}", *TINY)
        headway("run", *(f"--set={one}" for one in sets), folder=folder, seconds=END_SECONDS)
        found.append(RunDirectory.open(folder / "runs" / name))
    return found


def made_folder(parent: Path) -> Path:
    headway("init", "tiny", "my-run", folder=parent)
    return parent / "my-run"


def _started(folder: Path, name: str, steps: int) -> LiveRun:
    sets = (f"name={name}", f"train_for={steps} steps", "evaluation.every=50 steps", *TINY)
    return LiveRun(folder, name, NODES, *(f"--set={one}" for one in sets))
