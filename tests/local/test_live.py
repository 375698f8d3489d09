"""Live runs, as typed: sharded ones, flipped bits, and how they end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from support.live import LiveRun, write_run
from support.waiting import wait_for

pytestmark = [pytest.mark.local, pytest.mark.chaos, pytest.mark.timeout(300)]

RECOVER_SECONDS = 4.0
"""Of a target of 3 s and a step, on a machine where others work as well."""


@pytest.fixture
def folder(tmp_path: Path, text: Path) -> Path:
    return write_run(tmp_path, text)


def test_a_sharded_domain_is_lost_and_comes_back_as_a_whole(folder: Path) -> None:
    options = ("--set", "shard=node", "--set", "resources.accelerators=cpu:2")
    with LiveRun(folder, "it", 2, *options) as run:
        run.wait_for_step(20)
        kept = {place: pid for place, pid in run.workers().items() if place[0] == 0}
        before = run.step
        run.kill((1, 1))
        run.wait_for_step(before + 3, 2 * RECOVER_SECONDS)
        run.wait_for_members(4)
        assert kept.items() <= run.workers().items()
        run.wait_for_step(run.step + 5)
        run.stop()
        run.require_exact()


FLIPS_A_BIT = """
import os, torch
from headway.train.objectives import token_loss
calls = 0
def loss(model, batch):
    global calls
    calls += 1
    if calls == 120 and os.environ["HEADWAY_POD"].startswith("node-1.1/"):
        with torch.no_grad():
            weights = next(model.parameters()).view(torch.int32)
            weights[3, 5] ^= 1 << 12
    return token_loss(model, batch)
"""


@pytest.mark.long("twenty seconds; unit/train/test_weight_fingerprint.py has the rule")
def test_a_flipped_bit_is_named_and_healed(folder: Path) -> None:
    (folder / "mine.py").write_text(FLIPS_A_BIT)
    own = ("--set", "code.path=.", "--set", 'objective.call="mine:loss"')
    with LiveRun(folder, "it", 3, *own) as run:
        run.wait_for_step(105)
        (diverged,) = run.events("diverged")
        assert (diverged["step"], diverged["names"]) == (100, ["node-1.1/0"])
        run.wait_for_members(3)
        run.wait_for_step(205)
        output = run.stop()
        run.require_exact()
        assert len(run.events("diverged")) == 1, "healed"
    assert "the weights of node 1 differ from the majority" in output


@pytest.mark.long("the gate kills all pods of a run on the cluster")
def test_all_killed_at_once_restart_from_the_checkpoint(folder: Path) -> None:
    with LiveRun(folder, "it", 2, "--set", "checkpoint.every=20 steps") as run:
        run.wait_for_step(45)
        run.kill(*run.workers())
        wait_for("another start", lambda: len(run.events("started")) == 2, 10)
        again = run.events("started")[-1]
        assert again["resumed_from"] in (40, 60)
        run.wait_for_members(2)
        run.wait_for_step(run.step + 5)
        run.stop()
        run.require_exact()


@pytest.mark.long("waits half a minute; test_stopping_and_failing.py kills the launcher alone")
def test_workers_do_not_outlive_their_launcher_and_coordinator(folder: Path) -> None:
    """Also when they are waiting for others who will never come."""
    with LiveRun(folder, "it", 2) as run:
        run.wait_for_step(20)
        workers, coordinator = run.workers(), run.coordinator()
        assert coordinator is not None
        os.kill(workers[1, 0], signal.SIGSTOP)
        run.process.kill()
        wait_for("the coordinator's end", lambda: has_ended(coordinator), 10)
        os.kill(workers[1, 0], signal.SIGKILL)
        wait_for("their end", lambda: not run.workers(), 60)


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
