"""A run that torchrun starts: exact, resumed after losses and at other numbers of workers, known to
every command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.state.ledger import verify_ledger
from headway.state.run_directory import RunDirectory
from headway.state.status import read_status
from support.workers import TEN_STEPS, resolved_run, train

pytestmark = [pytest.mark.local, pytest.mark.timeout(240)]

STEPS = 600
RUN_FILE = (
    TEN_STEPS.replace("train_for: 10 steps", f"train_for: {STEPS} steps")
    .replace("every: 5 steps", "every: 20 steps")
    .replace("train: unused", "train: SET")
)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def started(folder: Path, workers: int, *more: str) -> subprocess.Popen[str]:
    log = (folder / "torchrun.log").open("a")
    command = [*TORCHRUN, f"--nproc-per-node={workers}", "--max-restarts=3", *more]
    return subprocess.Popen(
        [*command, "-m", "headway.train", "run.yaml"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        text=True,
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(folder / "error.json")},
    )


def wait_for(what: str, is_so: Callable[[], bool], log: Path, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"waited for {what}:\n{log.read_text()[-3000:]}"
        time.sleep(0.05)


def headway(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headway.cli.main", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def worker_pids(torchrun: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children")
    return [int(pid) for pid in children.read_text().split()]


def step_of(folder: Path) -> int:
    if not RunDirectory.exists(folder / "runs/it"):
        return 0
    return read_status(RunDirectory(folder / "runs/it"), time.time()).step


def test_losses_a_stop_and_another_number_of_workers(
    tmp_path: Path, stream: dict[str, Path]
) -> None:
    here, alone = tmp_path / "here", tmp_path / "alone"
    for folder in (here, alone):
        folder.mkdir()
        (folder / "run.yaml").write_text(RUN_FILE.replace("SET", str(stream["train"])))
    undisturbed = train(resolved_run(alone, stream))
    log = here / "torchrun.log"

    torchrun = started(here, 2)
    wait_for("step 40", lambda: step_of(here) >= 40, log)
    os.kill(worker_pids(torchrun)[-1], signal.SIGKILL)
    killed_at = step_of(here)
    wait_for("steps after the loss", lambda: step_of(here) > killed_at + 20, log)
    assert "running" in headway(here, "status", "it")
    assert "stopped it; saved up to step" in headway(here, "stop", "it")
    assert torchrun.wait(60) == 0, log.read_text()

    directory = RunDirectory.open(here / "runs/it")
    stopped_at = read_status(directory, time.time()).step
    assert stopped_at < STEPS
    assert started(here, 1).wait(120) == 0, log.read_text()

    status = read_status(directory, time.time())
    assert (status.state, status.step, status.interruptions) == ("finished", STEPS, 1)
    verdict = verify_ledger(directory.ledger.read()[0])
    assert (verdict.breach, verdict.steps, verdict.samples) == (None, STEPS, 4 * STEPS)
    losses, its = ([one["loss"] for one in of.steps()] for of in (directory, undisturbed))
    assert losses == pytest.approx(its, abs=1e-5)
    events = [event["event"] for event in directory.history()]
    assert (events.count("launched"), events.count("restarted")) == (2, 1)
    assert started(here, 1).wait(60) == 0, "a run that has finished"
    assert "nothing is left to train" in log.read_text()


def test_a_mistake_is_said_once_and_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("version: 1\nmodle: {type: gpt2}\n")
    assert started(tmp_path, 2, "--max-restarts=0").wait(90) != 0
    said = (tmp_path / "torchrun.log").read_text()
    assert said.count("run.yaml:2:1") == 1, said
    assert "modle" in said
