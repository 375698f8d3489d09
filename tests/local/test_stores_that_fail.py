"""A full disk and a store that answers errors: training goes on, says so, and saves again later."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headway.state.checkpoints import steps_saved
from headway.state.ledger import verify_ledger
from headway.state.run_directory import RunDirectory
from support.killing import write_run
from support.live import RUN_FILE, LiveRun
from support.live import write_run as write_live_run
from support.proxies import BrokenProxy
from support.s3 import credentials, s3_server
from support.waiting import wait_for
from support.workers import Workers, resolved_run

pytestmark = [pytest.mark.local, pytest.mark.chaos, pytest.mark.timeout(300)]

OUTAGE_SECONDS = float(os.environ.get("OUTAGE_SECONDS", "12"))
STEPS = 100_000


def named(workers: Workers, event: str) -> list[dict[str, Any]]:
    return [e for e in workers.directory.here().events.read()[0] if e["event"] == event]


def stop(workers: Workers) -> None:
    workers.signal(signal.SIGTERM)
    workers.wait(expect=6)


@pytest.fixture
def small_disk(tmp_path: Path):
    """A real file system of 32 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_does_not_stop_training(
    small_disk: Path, tmp_path: Path, stream: dict[str, Path]
) -> None:
    folder = write_run(tmp_path / "run", STEPS)
    # TensorBoard's files are on the full disk too.
    overrides = [f"storage={small_disk}", "track=[tensorboard]"]
    workers = Workers(resolved_run(folder, stream, 1, overrides))
    try:
        wait_for("a save", lambda: named(workers, "saved"))
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(b"\0" * 4096)
        good = steps_saved(workers.directory)[-1]
        time.sleep(3)
        filler.unlink()
        failed = wait_for("the failure to be noted", lambda: named(workers, "save_failed"))
        assert "No space left" in failed[0]["reason"]
        assert failed[0]["last_good_step"] >= good - 7
        assert failed[0]["last_good_age_seconds"] >= 0
        wait_for("a later save", lambda: steps_saved(workers.directory)[-1] > failed[0]["step"])
        stop(workers)
    finally:
        workers.kill()
    steps = [line["step"] for line in workers.directory.steps()]
    assert steps == list(range(1, len(steps) + 1)), "every step has its line"
    verdict = verify_ledger(workers.directory.ledger.read()[0])
    assert (verdict.breach, verdict.steps) == (None, len(steps))
    assert steps_saved(workers.directory)[-1] == len(steps)


def test_a_store_that_answers_errors_costs_no_step(
    tmp_path: Path, stream: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(tmp_path / "s3") as port, BrokenProxy(port) as proxy:
        for name, value in credentials(proxy.port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        folder = write_run(tmp_path / "run", STEPS)
        workers = Workers(resolved_run(folder, stream, 1, ["storage=s3://bucket/runs"]))
        here = workers.directory.here()
        try:
            wait_for("a save", lambda: named(workers, "saved"))
            proxy.broken = True
            before = here.metrics.last()["step"]
            slowest = _slowest_pause(here, OUTAGE_SECONDS)
            after = here.metrics.last()["step"]
            proxy.broken = False
            assert proxy.refused > 0
            assert named(workers, "save_failed"), "the failure is noted"
            assert after > before + 50, "training went on"
            assert slowest < 2.0, "no step waited for the store"
            wait_for("a later save", lambda: named(workers, "saved")[-1]["step"] > after)
            stop(workers)
        finally:
            workers.kill()
        steps = [line["step"] for line in workers.directory.steps()]
        assert steps == list(range(1, len(steps) + 1)), "every step reached the store"
        verdict = verify_ledger(workers.directory.ledger.read()[0])
        assert (verdict.breach, verdict.steps) == (None, len(steps))


def _slowest_pause(directory: Any, seconds: float) -> float:
    """The longest time without a new step while watching for so long."""
    slowest, last_step, changed = 0.0, -1, time.monotonic()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        step = directory.metrics.last()["step"]
        now = time.monotonic()
        if step != last_step:
            slowest, last_step, changed = max(slowest, now - changed), step, now
        time.sleep(0.02)
    return slowest


@pytest.mark.long("waits for most of a minute; unit/train/test_outages.py has what a worker does")
def test_workers_that_restart_wait_for_a_store_that_is_away(
    tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody holds the state: all of them need the store, to open the run and to restore."""
    with s3_server(tmp_path / "s3") as port, BrokenProxy(port) as proxy:
        for name, value in credentials(proxy.port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        run_file = f"{RUN_FILE}elastic: restart\ncheckpoint: {{every: 20 steps}}\n"
        folder = write_live_run(tmp_path, text, f"{run_file}storage: s3://bucket/runs\n")
        with LiveRun(folder, "it", 2) as run:
            run.directory = RunDirectory("s3://bucket/runs/it").here()
            wait_for("a save", lambda: run.events("saved"), 120)
            proxy.broken = True
            lost_at = run.step
            os.kill(noted_workers(run)[1], signal.SIGKILL)
            time.sleep(OUTAGE_SECONDS)
            assert run.process.poll() is None, run.output
            assert run.step <= lost_at + 20, "nobody trains without the store"
            proxy.broken = False
            run.wait_for_step(lost_at + 30, 90)
            run.stop()
        assert proxy.refused > 0
        verdict = verify_ledger(RunDirectory("s3://bucket/runs/it").ledger.read()[0])
        assert verdict.breach is None, verdict


def noted_workers(run: LiveRun) -> dict[int, int]:
    """Newest process of each node."""
    started = [event for event in run.directory.launcher.read()[0] if event["event"] == "worker"]
    return {event["node"]: event["pid"] for event in started}
